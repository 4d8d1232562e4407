//! Dependencies between the crates of the workspace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::{
    arrows::{self, Arrows},
    files::{files_below, normal},
};

/// Folder of crates that have one arrow together.
pub(crate) const GROUP: &str = "tests";

/// Tables of a manifest with dependencies that ship. A test may use everything.
const DEPENDENCIES: [&str; 2] = ["dependencies", "build-dependencies"];

/// A crate of the workspace.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its folder in the workspace, such as `tests/sim`.
    pub(crate) folder: String,
    pub(crate) manifest: Table,
}

impl Member {
    /// Its name as a package.
    pub(crate) fn name(&self) -> &str {
        self.manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str).unwrap_or("")
    }

    /// The beginning of its arrow.
    fn arrow(&self) -> &str {
        if self.folder.split('/').next() == Some(GROUP) { GROUP } else { &self.folder }
    }

    /// Packages that it depends on; `workspace` has the dependencies that it may inherit.
    pub(crate) fn dependencies<'a>(&'a self, workspace: &'a Table) -> BTreeSet<&'a str> {
        let targets = self.manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
        let tables = targets.filter_map(Value::as_table).chain([&self.manifest]);
        let dependencies = tables.flat_map(|table| DEPENDENCIES.iter().filter_map(|kind| table.get(*kind)?.as_table()));
        let package = |(name, how): (&'a String, &'a Value)| {
            let is_inherited = how.get("workspace").is_some();
            let how = if is_inherited { workspace.get(name).unwrap_or(how) } else { how };
            how.get("package").and_then(Value::as_str).unwrap_or(name)
        };
        dependencies.flatten().map(package).collect()
    }
}

/// Manifests that are no member's, members that are named by a pattern, dependencies on folders
/// that are none, and repositories.
///
/// # Errors
///
/// A folder or the workspace's manifest cannot be read.
pub(crate) fn outsiders(workspace: &Path, members: &[Member]) -> Result<Vec<String>> {
    let files = files_below(workspace)?;
    let manifests = files.iter().filter(|file| file.file_name().is_some_and(|name| name == "Cargo.toml"));
    let folders = manifests.filter_map(|file| file.parent()).filter(|folder| !folder.as_os_str().is_empty());
    Ok(outside(&manifest(workspace)?, members, folders))
}

fn outside<'a>(root: &Table, members: &[Member], folders: impl Iterator<Item = &'a Path>) -> Vec<String> {
    let is_member = |folder: &Path| members.iter().any(|member| Path::new(&member.folder) == folder);
    let lost = folders.filter(|folder| !is_member(folder));
    let mut broken: Vec<String> =
        lost.map(|folder| format!("{}/Cargo.toml is of no member of the workspace", folder.display())).collect();
    let own = members.iter().map(|member| (Path::new(&member.folder), &member.manifest));
    for (folder, manifest) in own.chain([(Path::new(""), root)]) {
        let name = folder.join("Cargo.toml").display().to_string();
        let tables = ["patch", "replace", "workspace"].into_iter().filter(|table| manifest.contains_key(*table));
        let foreign = tables.filter(|table| *table != "workspace" || !folder.as_os_str().is_empty());
        broken.extend(foreign.map(|table| format!("{name}: [{table}] changes crates: name them as dependencies")));
        let [mut paths, mut repositories] = [Vec::new(), Vec::new()];
        dependency_values(manifest, "path", &mut paths);
        dependency_values(manifest, "git", &mut repositories);
        broken.extend(repositories.into_iter().map(|url| format!("{name}: {url} is no registry of crates")));
        let outside = paths.into_iter().filter(|path| !is_member(&normal(&folder.join(path))));
        broken.extend(outside.map(|path| format!("{name}: {path} is no member of the workspace")));
    }
    broken.extend(members.iter().filter_map(foreign_library));
    let workspace = root.get("workspace").and_then(Value::as_table);
    let hiding =
        ["default-members", "exclude"].into_iter().filter(|key| workspace.is_some_and(|it| it.contains_key(*key)));
    broken.extend(hiding.map(|key| format!("Cargo.toml: `{key}` hides crates")));
    broken
}

/// A library with another name than its package: paths with that name would be no imports of the
/// package. One for C alone is in no paths.
fn foreign_library(member: &Member) -> Option<String> {
    let library = member.manifest.get("lib")?;
    let name = library.get("name")?.as_str()?;
    let kinds: Option<Vec<&str>> = library
        .get("crate-type")
        .and_then(Value::as_array)
        .map(|kinds| kinds.iter().filter_map(Value::as_str).collect());
    let is_for_c = kinds.is_some_and(|kinds| kinds == ["cdylib"]);
    let is_foreign = !is_for_c && name != member.name().replace('-', "_");
    is_foreign.then(|| format!("{}/Cargo.toml: the library {name} has not the name of its package", member.folder))
}

/// Values of `key` in the tables of dependencies, wherever these are.
fn dependency_values<'a>(table: &'a Table, key: &str, found: &mut Vec<&'a str>) {
    for (name, value) in table {
        let Some(inner) = value.as_table() else { continue };
        if name.ends_with("dependencies") {
            found.extend(inner.values().filter_map(|how| how.get(key)?.as_str()));
        } else {
            dependency_values(inner, key, found);
        }
    }
}

/// The crates of the workspace.
///
/// # Errors
///
/// A manifest cannot be read, or the workspace has no members.
pub(crate) fn members(workspace: &Path) -> Result<Vec<Member>> {
    let root = manifest(workspace)?;
    let folders = root.get("workspace").and_then(|it| it.get("members")).and_then(Value::as_array);
    let folders = folders.context("Cargo.toml has no members")?.iter().filter_map(Value::as_str);
    let member = |folder: &str| Ok(Member { manifest: manifest(&workspace.join(folder))?, folder: folder.to_owned() });
    folders.map(member).collect()
}

fn manifest(folder: &Path) -> Result<Table> {
    let file = folder.join("Cargo.toml");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    text.parse().with_context(|| file.display().to_string())
}

/// Dependencies that members may inherit from the workspace's manifest.
///
/// # Errors
///
/// The manifest cannot be read.
pub(crate) fn inherited_dependencies(workspace: &Path) -> Result<Table> {
    let root = manifest(workspace)?;
    let inherited = root.get("workspace").and_then(|it| it.get("dependencies")).and_then(Value::as_table);
    Ok(inherited.cloned().unwrap_or_default())
}

/// Dependencies on crates of the workspace that have no arrow, crates without an arrow, and faults
/// of the arrows. `inherited` has the dependencies of the workspace's manifest.
pub(crate) fn forbidden_dependencies(members: &[Member], inherited: &Table, arrows: &Arrows) -> Vec<String> {
    let arrow_of: BTreeMap<&str, &str> = members.iter().map(|member| (member.name(), member.arrow())).collect();
    let mut broken = Vec::new();
    let mut used = Arrows::new();
    for member in members {
        let (folder, from) = (&member.folder, member.arrow());
        let allowed = arrows.get(from);
        if allowed.is_none() {
            broken.push(format!("ARCHITECTURE.md has no arrow for the crate {folder}"));
        }
        let used = used.entry(from.to_owned()).or_default();
        for name in member.dependencies(inherited) {
            if arrow_of.get(name).is_none_or(|to| *to == from) {
                continue;
            }
            used.insert(name.to_owned());
            if allowed.is_some_and(|allowed| !allowed.contains(name)) {
                broken.push(format!("{folder}/Cargo.toml: {folder} may not depend on {name}"));
            }
        }
    }
    // Arrows lead from folders to packages: for circles, both by folder.
    let by_folder = |arrows: &Arrows| {
        let folder = |name: &String| arrow_of.get(name.as_str()).map_or(name.clone(), |folder| (*folder).to_owned());
        arrows.iter().map(|(from, to)| (from.clone(), to.iter().map(folder).collect())).collect()
    };
    let faults = arrows::faults(&by_folder(arrows), &by_folder(&used));
    broken.extend(faults.into_iter().map(|fault| format!("ARCHITECTURE.md, imports between crates: {fault}")));
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(folder: &str, manifest: &str) -> Member {
        Member { folder: folder.into(), manifest: manifest.parse().expect("valid") }
    }

    fn arrows(list: &[(&str, &[&str])]) -> Arrows {
        let names = |to: &[&str]| to.iter().map(|name| (*name).to_owned()).collect();
        list.iter().map(|(from, to)| ((*from).to_owned(), names(to))).collect()
    }

    #[test]
    fn every_way_to_write_a_dependency_counts() {
        let manifest = "[package]\nname = \"roced-x\"\n\
                        [dependencies]\nroced-a.workspace = true\nnix = \"1\"\nother = { package = \"roced-b\", path = \"b\" }\n\
                        [dependencies.roced-c]\npath = \"c\"\n\
                        [build-dependencies]\nroced-d = { path = \"d\" }\n\
                        [target.'cfg(unix)'.dependencies]\nshort.workspace = true\n\
                        [target.'cfg(unix)'.build-dependencies]\nroced-f = {}\n\
                        [dev-dependencies]\nroced-client.workspace = true\n";
        let inherited = "short = { package = \"roced-e\", path = \"e\" }\nroced-a = { path = \"a\" }";
        let names: Vec<&str> = vec!["nix", "roced-a", "roced-b", "roced-c", "roced-d", "roced-e", "roced-f"];
        let member = member("x", manifest);
        let inherited: Table = inherited.parse().expect("valid");
        assert_eq!(member.dependencies(&inherited).into_iter().collect::<Vec<_>>(), names);
    }

    #[test]
    fn a_crate_that_is_no_member_is_found() {
        let root = "[workspace]\nmembers = [\"a\", \"b/c\"]\nexclude = [\"d\"]\n\
                    default-members = [\"a\"]\n[workspace.dependencies]\n\
                    a = { path = \"a\" }\nd = { path = \"./d\" }\n[patch.crates-io]\nnix = { path = \"a\" }\n";
        let members = [
            member(
                "a",
                "[dependencies]\nc = { path = \"../b/c\" }\n[target.x.dev-dependencies]\ne = { path = \"../../e\" }\n",
            ),
            member("b/c", "[lib]\npath = \"src/x.rs\"\n[workspace]\n"),
        ];
        let broken = [
            "d/Cargo.toml is of no member of the workspace",
            "a/Cargo.toml: ../../e is no member of the workspace",
            "b/c/Cargo.toml: [workspace] changes crates: name them as dependencies",
            "Cargo.toml: [patch] changes crates: name them as dependencies",
            "Cargo.toml: ./d is no member of the workspace",
            "Cargo.toml: `default-members` hides crates",
            "Cargo.toml: `exclude` hides crates",
        ];
        let folders = ["a", "b/c", "d"].map(Path::new);
        assert_eq!(outside(&root.parse().expect("valid"), &members, folders.into_iter()), broken);
    }

    #[test]
    fn a_library_has_the_name_of_its_package() {
        let found =
            |library: &str| foreign_library(&member("a", &format!("[package]\nname = \"roced-a\"\n[lib]\n{library}")));
        assert_eq!(found("path = \"src/x.rs\""), None);
        assert_eq!(found("name = \"roced_a\""), None);
        assert_eq!(found("name = \"verbs\"\ncrate-type = [\"cdylib\"]"), None);
        let broken = Some("a/Cargo.toml: the library other has not the name of its package".to_owned());
        assert_eq!(found("name = \"other\""), broken);
        assert_eq!(found("name = \"other\"\ncrate-type = [\"cdylib\", \"rlib\"]"), broken);
    }

    #[test]
    fn repositories_do_not_change_crates() {
        let members = [member("a", "[target.x.dependencies]\nroced-b = { git = \"https://b\" }\n")];
        let broken = ["a/Cargo.toml: https://b is no registry of crates"];
        assert_eq!(outside(&Table::new(), &members, [].into_iter()), broken);
    }

    #[test]
    fn every_crate_has_an_arrow_and_those_of_tests_one_together() {
        let members = [
            member("base", "[package]\nname = \"roced-base\"\n"),
            member("app", "[package]\nname = \"roced\"\n[dependencies]\nroced-base = {}\n"),
            member("new", "[package]\nname = \"roced-new\"\n[dependencies]\nroced-base = {}\n"),
            member("tests/a", "[package]\nname = \"roced-a\"\n[dependencies]\nroced = {}\n"),
            member("tests/b", "[package]\nname = \"roced-b\"\n[dependencies]\nroced-a = {}\nroced-base = {}\n"),
        ];
        let arrows = arrows(&[("base", &["roced"]), ("app", &["roced-base"]), ("tests", &["roced"])]);
        let broken = [
            "ARCHITECTURE.md has no arrow for the crate new",
            "tests/b/Cargo.toml: tests/b may not depend on roced-base",
            "ARCHITECTURE.md, imports between crates: nothing needs the arrow from base to app",
            "ARCHITECTURE.md, imports between crates: arrows make a circle: app, base",
        ];
        assert_eq!(forbidden_dependencies(&members, &Table::new(), &arrows), broken);
    }
}
