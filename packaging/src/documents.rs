//! Documents as the package has them: each relative link leads to a file of the package, or to the
//! repository.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Files of the workspace that documents may link to, and their places in the package.
const PLACES: [(&str, &str); 4] = [
    ("README.md", "README.md"),
    // Not beside the README: there it would be a second changelog for lintian.
    ("CHANGELOG.md", "docs/CHANGELOG.md"),
    ("config/roced.toml", "examples/roced.toml"),
    ("docs", "docs"),
];

/// Writes the documents of the workspace to `folder`.
pub(crate) fn write(workspace: &Path, folder: &Path) -> Result<()> {
    for (from, _) in PLACES {
        write_one(workspace, Path::new(from), folder).with_context(|| from.to_owned())?;
    }
    Ok(())
}

fn write_one(workspace: &Path, path: &Path, folder: &Path) -> Result<()> {
    let from = workspace.join(path);
    if from.is_dir() {
        for entry in fs::read_dir(&from)? {
            write_one(workspace, &path.join(entry?.file_name()), folder)?;
        }
        return Ok(());
    }
    let place = place_of(path).context("it has no place in the package")?;
    let to = folder.join(&place);
    fs::create_dir_all(to.parent().unwrap_or(folder))?;
    if path.extension().is_some_and(|extension| extension == "md") {
        let text = fs::read_to_string(&from)?;
        fs::write(&to, with_links(&text, |link| target(workspace, path, &place, link)))?;
    } else {
        fs::copy(&from, &to)?;
    }
    Ok(())
}

/// Place in the package of a file or folder of the workspace.
fn place_of(path: &Path) -> Option<PathBuf> {
    PLACES.iter().find_map(|(from, to)| path.strip_prefix(from).ok().map(|rest| joined(Path::new(to), rest)))
}

/// Target in the package of a relative link of the document `path`, at `place` in the package.
fn target(workspace: &Path, path: &Path, place: &Path, link: &str) -> String {
    let (file, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
    let linked = joined(path.parent().unwrap_or(Path::new("")), Path::new(file));
    match place_of(&linked) {
        Some(to) => format!("{}{anchor}", relative(place.parent().unwrap_or(Path::new("")), &to).display()),
        None => {
            let kind = if workspace.join(&linked).is_dir() { "tree" } else { "blob" };
            let (repository, version) = (env!("CARGO_PKG_REPOSITORY"), env!("CARGO_PKG_VERSION"));
            format!("{repository}/{kind}/v{version}/{}{anchor}", linked.display())
        }
    }
}

/// `path` in `folder`, without `..`.
fn joined(folder: &Path, path: &Path) -> PathBuf {
    let mut joined = folder.to_owned();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = joined.pop(),
            Component::Normal(name) => joined.push(name),
            _ => {}
        }
    }
    joined
}

/// Path from `folder` to `path`.
fn relative(folder: &Path, path: &Path) -> PathBuf {
    let shared = folder.components().zip(path.components()).take_while(|(one, other)| one == other).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(path.components().skip(shared)).collect()
}

/// `text`, its relative links replaced; those within the document stay.
fn with_links(text: &str, replace: impl Fn(&str) -> String) -> String {
    let mut pieces = text.split("](");
    let mut all = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        all.push_str("](");
        match piece.split_once(')') {
            Some((link, _)) if is_relative(link) => {
                all.push_str(&replace(link));
                all.push_str(&piece[link.len()..]);
            }
            _ => all.push_str(piece),
        }
    }
    all
}

/// The target of a link is a file, and neither a URL nor a place in the document.
fn is_relative(link: &str) -> bool {
    !link.is_empty() && !link.starts_with('#') && !link.contains("://") && !link.contains(' ')
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    fn relative_links(text: &str) -> Vec<String> {
        let links = RefCell::new(Vec::new());
        with_links(text, |link| {
            let file = link.split('#').next().unwrap_or_default();
            links.borrow_mut().push(file.to_owned());
            String::new()
        });
        links.into_inner()
    }

    fn documents(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.flat_map(|path| if path.is_dir() { documents(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn every_relative_link_of_a_packaged_document_leads_to_a_packaged_file() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        write(Path::new(WORKSPACE), folder.path()).expect("it can be written");
        let mut links = 0;
        for document in documents(folder.path()).iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
            let text = fs::read_to_string(document).expect("a document");
            for link in relative_links(&text) {
                let there = document.parent().expect("a folder").join(&link);
                assert!(there.exists(), "{}: there is no {link} in the package", document.display());
                links += 1;
            }
        }
        assert!(links > 50, "only {links} links were found");
        for name in ["README.md", "docs/CHANGELOG.md", "examples/roced.toml", "docs/monitoring/dashboard.png"] {
            assert!(folder.path().join(name).is_file(), "no {name}");
        }
    }

    #[test]
    fn links_to_other_files_lead_to_the_repository() {
        let target = |path: &str, link| {
            let path = Path::new(path);
            target(Path::new(WORKSPACE), path, &place_of(path).expect("a document"), link)
        };
        let (repository, version) = (env!("CARGO_PKG_REPOSITORY"), env!("CARGO_PKG_VERSION"));
        assert_eq!(target("README.md", "docs/tuning.md#cores"), "docs/tuning.md#cores");
        assert_eq!(target("docs/README.md", "../CHANGELOG.md"), "CHANGELOG.md");
        assert_eq!(target("docs/README.md", "../config/roced.toml"), "../examples/roced.toml");
        assert_eq!(target("docs/design/daemon.md", "../tuning.md"), "../tuning.md");
        assert_eq!(target("CHANGELOG.md", "docs/containers.md"), "containers.md");
        assert_eq!(target("README.md", "NOTICE"), format!("{repository}/blob/v{version}/NOTICE"));
        assert_eq!(target("docs/client-abi.md", "../shared/abi"), format!("{repository}/tree/v{version}/shared/abi"));
    }

    #[test]
    fn only_relative_links_change() {
        let text = "[a](x.md) [b](https://c.rs/x) [c](#here) ![d](e/f.png)";
        assert_eq!(
            with_links(text, |link| format!("<{link}>")),
            "[a](<x.md>) [b](https://c.rs/x) [c](#here) ![d](<e/f.png>)"
        );
        for text in ["", "](", "[a](b", "a) b"] {
            assert_eq!(with_links(text, |_| String::new()), text);
        }
    }
}
