//! Files, folders and headings that documents name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::files::{files_below, normal};

/// Extensions of files that a document may name in backticks.
pub(crate) const EXTENSIONS: [&str; 12] =
    [".rs", ".c", ".h", ".toml", ".md", ".py", ".yml", ".patch", ".sh", ".service", ".conf", ".json"];

/// Files of other projects or hosts.
const ELSEWHERE: [&str; 3] = ["/etc/", "drivers/", "infiniband/"];

/// The index of all pages in its folder.
const INDEX: &str = "docs/README.md";

/// Files of the workspace, and every folder that has some.
struct Places {
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Places {
    fn new(files: BTreeSet<PathBuf>) -> Self {
        let folders = files.iter().flat_map(|file| file.ancestors().skip(1)).map(Path::to_owned).collect();
        Self { files, folders }
    }

    fn has(&self, path: &Path) -> bool {
        self.files.contains(path) || self.folders.contains(path)
    }

    /// Whether a quoted name, in a document of `folder`, is that of one file. Of several with that
    /// name it is the one in `near` or in its `src`, or the only one below.
    fn fault(&self, name: &str, folder: &Path, near: &Path) -> Option<String> {
        if self.has(Path::new(name)) || self.has(&normal(&folder.join(name))) {
            return None;
        }
        let is_exact = |folder: &Path| self.files.contains(&folder.join(name));
        let below = self.files.iter().filter(|file| file.ends_with(name) && file.starts_with(near));
        let is_near = !near.as_os_str().is_empty() && below.count() == 1;
        let mut found = self.files.iter().filter(|file| file.ends_with(name));
        match (found.next(), found.next()) {
            (None, _) => Some(format!("there is no {name}")),
            (Some(_), None) => None,
            (Some(_), Some(_)) if is_near || is_exact(near) || is_exact(&near.join("src")) => None,
            (Some(first), Some(second)) => {
                Some(format!("{name} is {} or {}, among others", first.display(), second.display()))
            }
        }
    }
}

/// Names in documents of files that do not exist or are several, links to such files, and to
/// headings that are not there.
///
/// # Errors
///
/// A file cannot be read.
pub(crate) fn missing_files(workspace: &Path) -> Result<Vec<String>> {
    let places = Places::new(files_below(workspace)?);
    let mut documents = BTreeMap::new();
    for document in places.files.iter().filter(|file| file.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(workspace.join(document)).with_context(|| document.display().to_string())?;
        documents.insert(document.clone(), text);
    }
    let faults = documents.iter().flat_map(|(document, text)| {
        let faults = wrong_names(&places, document, text).into_iter().chain(wrong_links(&places, &documents, document));
        faults.map(|(line, fault)| format!("{}:{line}: {fault}", document.display()))
    });
    Ok(faults.chain(unlisted_pages(&documents)).chain(needless(&ELSEWHERE, &documents)).collect())
}

/// Exemptions that no quoted name of a document needs.
fn needless(exempt: &[&str], documents: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let has = |text: &str, part: &str| text.split('`').skip(1).step_by(2).any(|quoted| quoted.contains(part));
    let needless = exempt.iter().filter(|part| !documents.values().any(|text| has(text, part)));
    let list = "tests/structure/src/documents.rs, ELSEWHERE";
    needless.map(|part| format!("{list}: no document names a file with {part}")).collect()
}

/// Pages of `docs` that its index does not link.
fn unlisted_pages(documents: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let index = Path::new(INDEX);
    let folder = index.parent().unwrap_or(index);
    let text = documents.get(index).map_or("", |text| text);
    let linked: BTreeSet<PathBuf> = unfenced_lines(text)
        .flat_map(|(_, line)| links(line))
        .map(|target| normal(&folder.join(target.split('#').next().unwrap_or(target))))
        .collect();
    let pages = documents.keys().filter(|page| page.starts_with(folder) && *page != index);
    let unlisted = pages.filter(|page| !linked.contains(*page));
    unlisted.map(|page| format!("{INDEX}: no link to {}", page.display())).collect()
}

/// Faults of quoted names, each with its line. A path from the workspace's root says where names
/// behind it are.
fn wrong_names(places: &Places, document: &Path, text: &str) -> Vec<(usize, String)> {
    let folder = document.parent().unwrap_or(Path::new(""));
    let mut near = PathBuf::new();
    let mut wrong = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let pieces: Vec<&str> = line.split('`').collect();
        for (quoted, behind) in pieces.iter().skip(1).step_by(2).zip(pieces.iter().skip(2).step_by(2).chain([&""])) {
            let Some(name) = named_place(quoted, places) else { continue };
            let target = behind.strip_prefix("](").and_then(|rest| rest.split([')', '#']).next());
            if target.is_some_and(|target| target.ends_with(name)) {
                continue;
            }
            wrong.extend(places.fault(name, folder, &near).map(|fault| (at + 1, fault)));
            let path = Path::new(name);
            if path.components().count() > 1 && places.has(path) {
                near = if places.folders.contains(path) { path } else { path.parent().unwrap_or(path) }.to_owned();
            }
        }
    }
    wrong
}

/// The file name or path that quoted text is or begins with: a name with a known extension, or a
/// path from the workspace's root, of a command.
fn named_place<'a>(quoted: &'a str, places: &Places) -> Option<&'a str> {
    let is_plain = |text: &str| text.chars().all(|it| it.is_ascii_alphanumeric() || "-_./".contains(it));
    let word = quoted.split([' ', ':']).next()?;
    let word = word.strip_prefix("./").unwrap_or(word);
    if !is_plain(word) || ELSEWHERE.iter().any(|elsewhere| word.contains(elsewhere)) {
        return None;
    }
    let has_extension = EXTENSIONS.iter().any(|it| word.len() > it.len() && word.ends_with(it));
    let is_of_root = |(first, _): (&str, _)| !first.is_empty() && places.folders.contains(Path::new(first));
    let is_placeholder = |part: &str| !part.is_empty() && part.chars().all(|letter| letter.is_ascii_uppercase());
    let is_of_root = word.split_once('/').is_some_and(is_of_root) && !word.split('/').any(is_placeholder);
    (has_extension && word == quoted || is_of_root).then_some(word)
}

/// Faults of relative links, each with its line.
fn wrong_links(places: &Places, documents: &BTreeMap<PathBuf, String>, document: &Path) -> Vec<(usize, String)> {
    let folder = document.parent().unwrap_or(Path::new(""));
    let fault = |target: &str| {
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = if path.is_empty() { document.to_owned() } else { normal(&folder.join(path)) };
        if !places.has(&file) {
            return Some(format!("there is no {path}"));
        }
        let text = documents.get(&file).filter(|_| !heading.is_empty())?;
        (!anchors(text).contains(heading)).then(|| format!("{} has no heading #{heading}", file.display()))
    };
    let text = &documents[document];
    let lines = unfenced_lines(text);
    let targets = lines.flat_map(|(number, line)| links(line).filter_map(fault).map(move |fault| (number, fault)));
    targets.chain(undefined_references(text)).collect()
}

/// Relative targets of links: `](target)`, `](target "title")`, `[name]: target`, `<target.md>` and
/// `href` or `src` of HTML. Code is no link.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let defined = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    let defined = defined.and_then(|target| target.split_whitespace().next()).map(|it| it.trim_matches(['<', '>']));
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let inline = inline.filter_map(|(target, _)| target.split_whitespace().next());
    let prose = || line.split('`').step_by(2);
    let attribute = |name| prose().flat_map(move |text| text.split(name).skip(1)).filter_map(attribute_value);
    let automatic = prose().flat_map(|text| text.split('<').skip(1)).filter_map(|rest| rest.split_once('>'));
    let automatic = automatic.map(|(target, _)| target).filter(move |target| {
        let file = target.split('#').next().unwrap_or("");
        let is_file = EXTENSIONS.iter().any(|it| file.ends_with(it)) && !target.contains([' ', '"', '\'', '@']);
        is_file && defined.is_none()
    });
    let targets = inline.chain(defined).chain(attribute("href=")).chain(attribute("src=")).chain(automatic);
    targets.filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

/// The value of an attribute, in quotes or up to a space.
fn attribute_value(text: &str) -> Option<&str> {
    match text.chars().next()? {
        quote @ ('"' | '\'') => text[1..].split(quote).next(),
        _ => text.split([' ', '>']).next(),
    }
}

/// References `[text][name]` and `[name][]` of a document without their `[name]: target`, each with
/// its line.
fn undefined_references(text: &str) -> Vec<(usize, String)> {
    let lines = || unfenced_lines(text);
    let defined = lines().filter_map(|(_, line)| line.trim_start().strip_prefix('[')?.split_once("]: "));
    let defined: BTreeSet<String> = defined.map(|(name, _)| name.to_lowercase()).collect();
    // An indented line may be code, such as `a[0][1]`.
    let faults = lines().filter(|(_, line)| !line.starts_with("    ")).flat_map(|(number, line)| {
        let pieces =
            line.split('`').step_by(2).flat_map(|text| text.match_indices("][").map(move |(at, _)| (text, at)));
        let names = pieces.filter_map(|(text, at)| {
            let name = text[at + 2..].split_once(']')?.0;
            Some(if name.is_empty() { text[..at].rsplit('[').next()? } else { name })
        });
        let names = names.filter(|name| !defined.contains(&name.to_lowercase()));
        names.map(move |name| (number, format!("there is no [{name}]: target"))).collect::<Vec<_>>()
    });
    faults.collect()
}

/// Lines outside of fenced blocks, each with its number.
fn unfenced_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((at + 1, line))
    })
}

/// Anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_fenced = false;
    for line in text.lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if is_fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let slug = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let free = [slug.clone()].into_iter().chain(numbered).find(|slug| !anchors.contains(slug));
        anchors.extend(free);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[&str]) -> Places {
        Places::new(files.iter().map(PathBuf::from).collect())
    }

    fn names<'a>(line: &'a str, places: &Places) -> Vec<&'a str> {
        line.split('`').skip(1).step_by(2).filter_map(|quoted| named_place(quoted, places)).collect()
    }

    #[test]
    fn names_in_backticks_are_found() {
        let line = "`qp/mod.rs`, `a b.rs`, `.rs`, `/etc/roced/roced.toml`, `cargo x`, `x.patch` `a.py` `scripts/gone --x` \
                    `./scripts/test a` `other/x` `transport/src/*.rs` `scripts/` `scripts/NAME` `/scripts` `c.yml:3`";
        let found = ["qp/mod.rs", "x.patch", "a.py", "scripts/gone", "scripts/test", "scripts/"];
        assert_eq!(names(line, &places(&["scripts/test"])), found);
    }

    #[test]
    fn a_name_of_several_files_is_the_one_near_the_last_path() {
        let places = places(&[
            "a/src/mod.rs",
            "a/src/x.rs",
            "b/src/mod.rs",
            "b/src/y.rs",
            "b/src/c/w.rs",
            "a/w.rs",
            "docs/z.md",
        ]);
        let wrong = |text: &str| wrong_names(&places, Path::new("docs/z.md"), text);
        assert_eq!(wrong("`x.rs` `src/y.rs` `z.md` `../a/src/x.rs`"), []);
        assert_eq!(wrong("`a/src/x.rs`\n`mod.rs`, `b/src`: `mod.rs` `w.rs` [`mod.rs`](../a/src/mod.rs)"), []);
        let several = "mod.rs is a/src/mod.rs or b/src/mod.rs, among others";
        assert_eq!(wrong("`mod.rs`\n`y.rs` `mod.rs`"), [(1, several.into()), (2, several.into())]);
        assert_eq!(wrong("`a/src/y.rs`"), [(1, "there is no a/src/y.rs".into())]);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        assert_eq!(links("[a](../x.md#part) [b](https://c.rs) [c](#d)").collect::<Vec<_>>(), ["../x.md#part", "#d"]);
        let places = places(&["docs/a.md", "b.md"]);
        let document = Path::new("docs/a.md");
        let wrong = |text: &str| {
            let texts =
                [("docs/a.md", text), ("b.md", "# Some `code`, and 2 more\n```\n# no\n```\n## Some\n### Some\n")];
            let documents = texts.map(|(file, text)| (PathBuf::from(file), text.to_owned())).into();
            wrong_links(&places, &documents, document)
        };
        assert_eq!(wrong("# It is\n[a](../b.md#some-code-and-2-more) [b](../b.md#some-1) [c](#it-is) [d](a.md)"), []);
        let faults = [(1, "b.md has no heading #no".to_owned()), (1, "there is no c.md".into())];
        assert_eq!(wrong("[a](../b.md#no) [b](c.md#x)"), faults);
    }

    #[test]
    fn an_exemption_has_a_name_that_needs_it() {
        let documents = [(PathBuf::from("a.md"), "x/ `a y/b.rs`\n`z`".to_owned())].into();
        let fault =
            |part: &str| format!("tests/structure/src/documents.rs, ELSEWHERE: no document names a file with {part}");
        assert_eq!(needless(&["x/", "y/", "w/"], &documents), ["x/", "w/"].map(fault));
    }

    #[test]
    fn the_index_links_every_page() {
        let index = "| [a](a.md) | [b](design/b.md#part) |\n```\n[c](c.md)\n```\n";
        let texts = [(INDEX, index), ("docs/a.md", ""), ("docs/design/b.md", ""), ("docs/c.md", ""), ("d.md", "")];
        let documents = texts.map(|(file, text)| (PathBuf::from(file), text.to_owned())).into();
        assert_eq!(unlisted_pages(&documents), ["docs/README.md: no link to docs/c.md"]);
    }

    #[test]
    fn links_of_every_form_lead_to_files_and_headings() {
        let places = places(&["docs/a.md", "b.md", "docs/p.png"]);
        let document = Path::new("docs/a.md");
        let wrong = |text: &str| {
            let texts = [("docs/a.md", text), ("b.md", "# Some\n")];
            let documents = texts.map(|(file, text)| (PathBuf::from(file), text.to_owned())).into();
            wrong_links(&places, &documents, document).into_iter().map(|(_, fault)| fault).collect::<Vec<_>>()
        };
        for form in [
            "[r]: TARGET",
            "  [r]: <TARGET> \"title\"",
            "[r](TARGET \"title\")",
            "<TARGET>",
            "<a href=\"TARGET\">x</a>",
            "<img alt=x src='TARGET'>",
            "<a href=TARGET>x</a>",
        ] {
            for right in ["../b.md", "../b.md#some", "https://a.b/c.md"] {
                assert_eq!(wrong(&form.replace("TARGET", right)), [""; 0], "{form} {right}");
            }
            assert_eq!(wrong(&form.replace("TARGET", "c.md")), ["there is no c.md"], "{form}");
            assert_eq!(wrong(&form.replace("TARGET", "../b.md#no")), ["b.md has no heading #no"], "{form}");
        }
        assert_eq!(wrong("[x][r] [R][]\n`[x][y]` `a[0][1]`\n```\n[x][y]\n```\n    [x][z]\n\n[r]: p.png"), [""; 0]);
        assert_eq!(wrong("[x][r] [y][]"), ["there is no [r]: target", "there is no [y]: target"]);
        assert_eq!(wrong("`<c.md>` and `<a href=\"c.md\">` <user@a.rs> <NAME> <br>"), [""; 0]);
    }
}
