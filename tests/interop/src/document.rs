//! The parts of a full run for `docs/interop.md`, in the place of those of an earlier one. All else
//! on that page is written by people.

use std::{fs, path::Path, thread};

use anyhow::{Context as _, Result, ensure};

/// The table of how the same operations look begins with this line.
pub(crate) const DIFFERENCES: &str = "| | field | roced | rxe |\n";
/// The last section of the page.
const LAST_RUN: &str = "\n## The last run\n";
const WORDS: &str = "\"harmed\": frames dropped, duplicated or corrupted; \"otherwise\": rules that rxe broke, and how often, endings known to differ \
                     (above), packets that the switch marked, and CNPs of roced; \"ok, last ACK lost\": see \"How it is checked\".";

/// Where it ran, in a line.
pub(crate) fn machine(image: &Path) -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let kernel = fs::read_link(image.join("vmlinux")).with_context(|| format!("{}/vmlinux", image.display()))?;
    let kernel = kernel.file_name().map(|name| name.to_string_lossy().replace("vmlinux", "linux-image"));
    let cores = thread::available_parallelism()?;
    Ok(format!("{cores} cores, Linux {}, guest {}", release.trim(), kernel.unwrap_or_default()))
}

/// Writes it into `page`. `summary` says in a line how the run ended, `outcomes` is its table and
/// the notes to it.
pub(crate) fn write(page: &Path, differences: &str, summary: &str, outcomes: &str) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let text = rewritten(&text, differences, summary, outcomes).with_context(|| page.display().to_string())?;
    fs::write(page, text).with_context(|| page.display().to_string())
}

fn rewritten(page: &str, differences: &str, summary: &str, outcomes: &str) -> Result<String> {
    let (before, rest) = page.split_once(DIFFERENCES).context("it has no table of differences")?;
    let table_bytes: usize = rest.split_inclusive('\n').take_while(|line| line.starts_with('|')).map(str::len).sum();
    let (between, old) = rest[table_bytes..].split_once(LAST_RUN).context("it has no section of the last run")?;
    ensure!(!old.contains("\n## "), "the last run is not its last section");
    let command = "as `scripts/interop --document docs/interop.md` writes it";
    Ok(format!("{before}{differences}{between}{LAST_RUN}{summary}, {command}. {WORDS}\n\n{outcomes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\n| | field | roced | rxe |\n|---|\n| old |\n\n- why\n\n## The last run\n1 of 2 passed.\n\n| old |\n- old\n";

    #[test]
    fn only_the_generated_part_of_the_document_is_replaced() {
        let table = format!("{DIFFERENCES}|---|\n| new |\n");
        let text = rewritten(PAGE, &table, "2 of 2 passed", "| run |\n").expect("a page");
        let (head, tail) = text.split_once("\n## The last run\n").expect("the section");
        assert_eq!(head, format!("# Page\n\n{table}\n- why\n"));
        assert!(tail.starts_with("2 of 2 passed, as ") && tail.ends_with(".\n\n| run |\n"), "{tail}");
        assert!(!text.contains("old"), "{text}");
        assert_eq!(rewritten(&text, &table, "2 of 2 passed", "| run |\n").expect("a page"), text, "again");
    }

    #[test]
    fn another_page_is_left_alone() {
        for page in
            [&PAGE.replace("field", "place"), &PAGE.replace("last run", "first run"), &format!("{PAGE}\n## More\n")]
        {
            assert!(rewritten(page, DIFFERENCES, "", "").is_err(), "{page}");
        }
    }

    #[test]
    fn the_page_of_this_tree_has_both_places() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/interop.md");
        let text = fs::read_to_string(page).expect("docs/interop.md");
        assert!(rewritten(&text, DIFFERENCES, "", "").is_ok());
    }
}
