//! Figures that documents repeat from docs/performance.md: ratios after their names, and rounds.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::files::files_below;

/// The document that `scripts/bench` makes.
const PERFORMANCE: &str = "docs/performance.md";

/// Documents that may have older figures: the history.
const HISTORY: &str = "CHANGELOG.md";

/// Characters that may stand between the name of a ratio and its figure.
const BETWEEN: [char; 6] = ['`', ' ', '|', ':', ')', '='];

/// Ratio by name: median, least and most, as the table has them.
type Ratios<'a> = BTreeMap<&'a str, [f64; 3]>;

/// Ratios in documents that differ from docs/performance.md, and another number of rounds in the
/// README.
///
/// A ratio is recognized by its name in backticks with a number after it: `` `name` 0.84``,
/// `` (`name`) | 0.84 (0.64 to 0.86)``.
///
/// # Errors
///
/// A file cannot be read, or docs/performance.md has no ratios or rounds.
pub(crate) fn differences(workspace: &Path) -> Result<Vec<String>> {
    let read = |file: &Path| fs::read_to_string(workspace.join(file)).with_context(|| file.display().to_string());
    let performance = read(Path::new(PERFORMANCE))?;
    let ratios = ratios(&performance);
    ensure!(!ratios.is_empty(), "{PERFORMANCE} has no ratios");
    let rounds = performance.lines().find_map(|line| line.strip_prefix("- rounds: "));
    let rounds = rounds.with_context(|| format!("{PERFORMANCE} does not tell its rounds"))?;
    let mut broken = Vec::new();
    for document in files_below(workspace)?.iter().filter(|file| file.extension().is_some_and(|it| it == "md")) {
        if [PERFORMANCE, HISTORY].iter().any(|it| document == Path::new(it)) {
            continue;
        }
        for (number, line) in read(document)?.lines().enumerate() {
            broken
                .extend(wrong_figures(line, &ratios).map(|it| format!("{}:{}: {it}", document.display(), number + 1)));
        }
    }
    if !read(Path::new("README.md"))?.contains(&format!("of {rounds} rounds")) {
        broken.push(format!("README.md does not say, by {PERFORMANCE}: of {rounds} rounds"));
    }
    Ok(broken)
}

/// Rows `` | `name` | median | least to most |``.
fn ratios(performance: &str) -> Ratios<'_> {
    let row = |line| {
        let (name, cells) = str::strip_prefix(line, "| `")?.split_once("` |")?;
        let mut cells = cells.split('|').map(str::trim);
        let (median, (least, most)) = (cells.next()?, cells.next()?.split_once(" to ")?);
        Some((name, [median.parse().ok()?, least.parse().ok()?, most.parse().ok()?]))
    };
    performance.lines().filter_map(row).collect()
}

/// Figures after names of ratios in `line` that are others than the table's.
fn wrong_figures(line: &str, ratios: &Ratios<'_>) -> impl Iterator<Item = String> {
    let parts: Vec<_> = line.match_indices('`').map(|(at, _)| at).collect();
    let named = parts.windows(2).filter_map(|ends| {
        let name = &line[ends[0] + 1..ends[1]];
        let (name, values) = ratios.get_key_value(name)?;
        let text = line[ends[1]..].trim_start_matches(BETWEEN);
        text.starts_with(|first: char| first.is_ascii_digit()).then_some((*name, values, text))
    });
    let wrong = named.filter_map(|(name, values, text)| {
        let right = figures(values, text);
        (!text.starts_with(&right)).then(|| format!("`{name}` is {right} in {PERFORMANCE}, not {text:.24}"))
    });
    wrong.collect::<Vec<_>>().into_iter()
}

/// The figures as `text` writes them: with as many decimals as the number that it begins with, and
/// the range where one follows: `0.84`, `0.84 (0.64 to 0.86)`.
fn figures([median, least, most]: &[f64; 3], text: &str) -> String {
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let number = number.trim_end_matches('.');
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let has_range =
        rest.strip_prefix(" (").and_then(|rest| rest.split_once(')')).is_some_and(|(it, _)| it.contains(" to "));
    let range = has_range.then(|| format!(" ({least:.decimals$} to {most:.decimals$})"));
    format!("{median:.decimals$}{}", range.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| ratio | median | least to most | near: median, rounds | goal |
|---|---|---|---|---|
| `a_vs_b` | 0.842 | 0.644 to 0.861 | 0.842 of 4 | at least 0.75, met |
| `c_vs_d` | 1.397 | 1.302 to 1.641 | - | - |
| `raw_64` | - | 190.6 | 4.6 |
";

    #[test]
    fn rows_of_ratios_are_read() {
        let expected = [("a_vs_b", [0.842, 0.644, 0.861]), ("c_vs_d", [1.397, 1.302, 1.641])];
        assert_eq!(ratios(TABLE), expected.into());
    }

    #[test]
    fn figures_that_differ_are_found() {
        let ratios = ratios(TABLE);
        let wrong = |line| wrong_figures(line, &ratios).collect::<Vec<_>>();
        for right in [
            "| WRITE (`a_vs_b`) | 0.84 (0.64 to 0.86) |",
            "`c_vs_d`: 1.4, and `a_vs_b` 0.842.",
            "`a_vs_b` and 3",
            "`x` 5",
        ] {
            assert_eq!(wrong(right), [""; 0]);
        }
        assert_eq!(wrong("(`a_vs_b`) | 0.84 (0.65 to 0.86)").len(), 1);
        assert_eq!(wrong("`a_vs_b` 0.8, `c_vs_d` = 1.5"), ["`c_vs_d` is 1.4 in docs/performance.md, not 1.5"]);
    }
}
