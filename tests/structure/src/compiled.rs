//! Files that the compiler reads, and the tests that run: `mod` lines are followed from the roots
//! of every crate's targets. A source file that none reaches is an error, because its tests never
//! run.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Attribute, Expr, ExprLit, Item, ItemMacro, ItemMod, Lit, Meta, Token, punctuated::Punctuated};
use toml::{Table, Value};

use crate::{
    crates::Member,
    files::{Sources, normal},
};

/// Kinds of targets besides the library: the table of a manifest, the folder, and whether
/// `cargo test` runs their tests.
const KINDS: [(&str, &str, bool); 4] =
    [("bin", "src/bin", true), ("test", "tests", true), ("example", "examples", false), ("bench", "benches", false)];

/// A way to build the workspace.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Build {
    test: bool,
    loom: bool,
    arch: &'static str,
}

impl Build {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for test in [false, true] {
            for loom in [false, true] {
                all.extend(["x86_64", "aarch64"].map(|arch| Self { test, loom, arch }));
            }
        }
        all
    }

    /// Whether a predicate of `cfg` is true; nothing for one that is unknown here.
    fn satisfies(self, predicate: &Meta) -> Option<bool> {
        match predicate {
            Meta::Path(path) if path.is_ident("test") => Some(self.test),
            Meta::Path(path) if path.is_ident("loom") => Some(self.loom),
            Meta::NameValue(pair) if pair.path.is_ident("target_arch") => Some(string(&pair.value)? == self.arch),
            Meta::List(list) => {
                let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
                let parts: Option<Vec<bool>> = parts.iter().map(|part| self.satisfies(part)).collect();
                let parts = parts?;
                match list.path.get_ident()?.to_string().as_str() {
                    "all" => Some(parts.iter().all(|part| *part)),
                    "any" => Some(parts.iter().any(|part| *part)),
                    "not" => Some(!*parts.first()?),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// The text of an expression that is a string.
pub(crate) fn string(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// The root of a target.
#[derive(Debug, PartialEq)]
struct Root {
    file: PathBuf,
    /// Whether `cargo test` runs its functions with `#[test]`.
    is_tested: bool,
}

/// Files that the compiler reads.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    tests: BTreeMap<PathBuf, BTreeSet<String>>,
    seen: BTreeSet<(PathBuf, bool, Vec<Build>)>,
    faults: Vec<String>,
}

impl Compiled {
    /// Follows the crates' sources.
    ///
    /// # Errors
    ///
    /// A file is not valid Rust.
    pub(crate) fn read(sources: &Sources, members: &[Member]) -> Result<Self> {
        let mut all = Self::default();
        for member in members {
            for Root { file, is_tested } in roots(member, sources) {
                let folder = file.parent().unwrap_or(Path::new("")).to_owned();
                all.follow(sources, &file, &folder, is_tested, &Build::all())?;
            }
        }
        Ok(all)
    }

    /// Files that nothing reaches, `mod` lines without a file, and conditions that are unknown.
    pub(crate) fn faults(&self, sources: &Sources) -> Vec<String> {
        let reached: BTreeSet<&PathBuf> = self.seen.iter().map(|(file, ..)| file).collect();
        let lost = sources.keys().filter(|file| !reached.contains(file));
        let lost = lost.map(|file| format!("{}: no `mod` line leads to it, it is never compiled", file.display()));
        lost.chain(self.faults.iter().cloned()).collect()
    }

    /// Whether a file has a test of that name that `cargo test` runs.
    pub(crate) fn has_test(&self, file: &str, name: &str) -> bool {
        self.tests.get(Path::new(file)).is_some_and(|tests| tests.contains(name))
    }

    /// Names of all tests that `cargo test` runs.
    pub(crate) fn tests(&self) -> BTreeSet<&str> {
        self.tests.values().flatten().map(String::as_str).collect()
    }

    /// Whether the compiler reads a file for tests alone.
    pub(crate) fn is_of_tests(&self, file: &Path) -> bool {
        let mut builds = self.seen.iter().filter(|(seen, ..)| seen == file).flat_map(|(.., builds)| builds).peekable();
        builds.peek().is_some() && builds.all(|build| build.test)
    }

    /// Follows a file, with its modules in `folder`.
    fn follow(
        &mut self,
        sources: &Sources,
        file: &Path,
        folder: &Path,
        is_tested: bool,
        builds: &[Build],
    ) -> Result<()> {
        let text = &sources[file];
        let syntax = syn::parse_file(text).with_context(|| file.display().to_string())?;
        let builds = self.remaining(file, builds, &syntax.attrs);
        if builds.is_empty() || !self.seen.insert((file.to_owned(), is_tested, builds.clone())) {
            return Ok(());
        }
        let place = Place { sources, file, folder: folder.to_owned(), is_inline: false, is_tested, builds };
        self.add_items(&place, &syntax.items)
    }

    fn add_items(&mut self, place: &Place<'_>, items: &[Item]) -> Result<()> {
        for item in items {
            match item {
                Item::Mod(module) => self.add_module(place, module)?,
                Item::Fn(function) => {
                    let builds = self.remaining(place.file, &place.builds, &function.attrs);
                    let has = |name| function.attrs.iter().any(|attribute| attribute.path().is_ident(name));
                    if has("test") && !has("ignore") {
                        self.add_test(place, &builds, function.sig.ident.to_string());
                    }
                }
                Item::Macro(called) => {
                    let builds = self.remaining(place.file, &place.builds, &called.attrs);
                    for name in properties(called) {
                        self.add_test(place, &builds, name);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_test(&mut self, place: &Place<'_>, builds: &[Build], name: String) {
        if place.is_tested && builds.iter().any(|build| build.test && build.arch == "x86_64") {
            self.tests.entry(place.file.to_owned()).or_default().insert(name);
        }
    }

    fn add_module(&mut self, place: &Place<'_>, module: &ItemMod) -> Result<()> {
        let builds = self.remaining(place.file, &place.builds, &module.attrs);
        if builds.is_empty() {
            return Ok(());
        }
        let name = module.ident.to_string();
        let folder = place.folder.join(&name);
        if let Some((_, items)) = &module.content {
            return self.add_items(&Place { folder, is_inline: true, builds, ..*place }, items);
        }
        let path = module.attrs.iter().find(|attribute| attribute.path().is_ident("path"));
        let path = path.and_then(|path| string(&path.meta.require_name_value().ok()?.value));
        let candidates = match path {
            Some(path) => {
                let own = place.file.parent().unwrap_or(Path::new(""));
                let file = normal(&if place.is_inline { &place.folder } else { own }.join(path));
                vec![(file.clone(), file.parent().unwrap_or(Path::new("")).to_owned())]
            }
            None => vec![(folder.with_extension("rs"), folder.clone()), (folder.join("mod.rs"), folder)],
        };
        match candidates.into_iter().find(|(file, _)| place.sources.contains_key(file)) {
            Some((file, folder)) => self.follow(place.sources, &file, &folder, place.is_tested, &builds),
            None => {
                self.faults.push(format!("{}: `mod {name};` has no file", place.file.display()));
                Ok(())
            }
        }
    }

    /// The builds of `builds` that have an item with these attributes.
    fn remaining(&mut self, file: &Path, builds: &[Build], attributes: &[Attribute]) -> Vec<Build> {
        let mut remaining = builds.to_vec();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")) {
            let predicate = attribute.parse_args::<Meta>().ok();
            let satisfies = |build: &Build| predicate.as_ref().and_then(|it| build.satisfies(it));
            if builds.iter().any(|build| satisfies(build).is_none()) {
                let known = "write test, loom, target_arch, all, any, not";
                self.faults.push(format!("{}: a `cfg` with an unknown condition: {known}", file.display()));
            }
            remaining.retain(|build| satisfies(build) == Some(true));
        }
        remaining
    }
}

/// A place of items: a file, or an inline module in it.
struct Place<'a> {
    sources: &'a Sources,
    file: &'a Path,
    /// The folder with the files of its modules.
    folder: PathBuf,
    is_inline: bool,
    is_tested: bool,
    builds: Vec<Build>,
}

/// Names of the tests in `proptest! { #[test] fn name(...) { ... } }`.
fn properties(called: &ItemMacro) -> Vec<String> {
    if called.mac.path.segments.last().is_none_or(|name| name.ident != "proptest") {
        return Vec::new();
    }
    let mut attributes: Vec<String> = Vec::new();
    let mut names = Vec::new();
    let tokens: Vec<TokenTree> = called.mac.tokens.clone().into_iter().collect();
    for pair in tokens.windows(2) {
        match pair {
            [TokenTree::Punct(mark), TokenTree::Group(group)]
                if mark.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
            {
                attributes.extend(first_name(group.stream()));
            }
            [TokenTree::Ident(keyword), TokenTree::Ident(name)] if keyword == "fn" => {
                let has = |name: &str| attributes.iter().any(|it| it == name);
                if has("test") && !has("ignore") && !has("cfg") {
                    names.push(name.to_string());
                }
                attributes.clear();
            }
            _ => {}
        }
    }
    names
}

fn first_name(tokens: TokenStream) -> Option<String> {
    tokens.into_iter().next().map(|name| name.to_string())
}

/// Roots of the targets of a crate, as Cargo finds them.
fn roots(member: &Member, sources: &Sources) -> Vec<Root> {
    let folder = Path::new(&member.folder);
    let flag = |table: &Table, key: &str, usual: bool| table.get(key).and_then(Value::as_bool).unwrap_or(usual);
    let mut tested: BTreeMap<PathBuf, bool> = BTreeMap::new();
    let package = member.manifest.get("package").and_then(Value::as_table);
    let empty = Table::new();
    let library = member.manifest.get("lib").and_then(Value::as_table).unwrap_or(&empty);
    let path = library.get("path").and_then(Value::as_str).unwrap_or("src/lib.rs");
    tested.insert(folder.join(path), flag(library, "test", true) && flag(library, "harness", true));
    let build = package.and_then(|it| it.get("build")).and_then(Value::as_str).unwrap_or("build.rs");
    tested.insert(folder.join(build), false);
    tested.insert(folder.join("src/main.rs"), true);
    for (kind, below, is_tested) in KINDS {
        let below = folder.join(below);
        if package.is_none_or(|package| flag(package, &format!("auto{kind}s"), true)) {
            let is_root = |file: &&PathBuf| {
                let parent = file.parent();
                parent == Some(&below) || file.ends_with("main.rs") && parent.and_then(Path::parent) == Some(&below)
            };
            tested.extend(sources.keys().filter(is_root).map(|file| (file.clone(), is_tested)));
        }
        let declared = member.manifest.get(kind).and_then(Value::as_array);
        for target in declared.into_iter().flatten().filter_map(Value::as_table) {
            let name = target.get("name").and_then(Value::as_str).unwrap_or("");
            let path = target.get("path").and_then(Value::as_str).map(|path| folder.join(path));
            let usual = [below.join(name).with_extension("rs"), below.join(name).join("main.rs")];
            let file = path.into_iter().chain(usual).find(|file| sources.contains_key(file));
            let is_tested = flag(target, "test", is_tested) && flag(target, "harness", true);
            tested.extend(file.map(|file| (file, is_tested)));
        }
    }
    let roots = tested.into_iter().map(|(file, is_tested)| Root { file: normal(&file), is_tested });
    roots.filter(|root| sources.contains_key(&root.file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        files.iter().map(|(file, text)| (PathBuf::from(file), (*text).to_owned())).collect()
    }

    fn member(manifest: &str) -> Member {
        Member { folder: "a".into(), manifest: manifest.parse().expect("valid") }
    }

    fn compiled(files: &[(&str, &str)], manifest: &str) -> (Vec<String>, Vec<String>) {
        let sources = sources(files);
        let compiled = Compiled::read(&sources, &[member(manifest)]).expect("valid Rust");
        let tests = compiled.tests.iter();
        let tests = tests.flat_map(|(file, names)| names.iter().map(move |name| format!("{}: {name}", file.display())));
        (compiled.faults(&sources), tests.collect())
    }

    const LOST: &str = ": no `mod` line leads to it, it is never compiled";

    #[test]
    fn a_file_without_a_mod_line_is_lost() {
        let files = [
            ("a/build.rs", ""),
            ("a/src/lib.rs", "mod b; #[cfg(test)] mod tests; mod c { mod d; } #[path = \"../x/e.rs\"] mod e;"),
            ("a/src/b/mod.rs", "mod f;"),
            ("a/src/b/f.rs", "mod g;"),
            ("a/src/b/f/g.rs", ""),
            ("a/src/b/tests.rs", ""),
            ("a/src/c/d.rs", ""),
            ("a/src/c/mod.rs", ""),
            ("a/src/g.rs", ""),
            ("a/src/tests.rs", ""),
            ("a/x/e.rs", "mod h;"),
            ("a/x/h.rs", ""),
            ("a/tests/one.rs", "mod two;"),
            ("a/tests/two/mod.rs", ""),
            ("a/tests/two/lost.rs", ""),
            ("a/tests/three/main.rs", "mod inner; mod gone;"),
            ("a/tests/three/inner.rs", ""),
            ("elsewhere.rs", ""),
        ];
        let lost = ["a/src/b/tests.rs", "a/src/c/mod.rs", "a/src/g.rs", "a/tests/two/lost.rs", "elsewhere.rs"];
        let mut faults: Vec<String> = lost.iter().map(|file| format!("{file}{LOST}")).collect();
        faults.push("a/tests/three/main.rs: `mod gone;` has no file".into());
        assert_eq!(compiled(&files, "").0, faults);
    }

    #[test]
    fn a_file_behind_a_condition_that_never_holds_is_lost() {
        let text = "#[cfg(any())] mod b; #[cfg(all(test, not(test)))] mod c; #[cfg(feature = \"x\")] mod d;
            #[cfg(all(test, not(loom)))] mod e; #[cfg(target_arch = \"aarch64\")] mod f; #[cfg(not(test))] mod g;";
        let files = [
            ("a/src/b.rs", ""),
            ("a/src/c.rs", ""),
            ("a/src/d.rs", ""),
            ("a/src/e.rs", "#[test] fn e() {}"),
            ("a/src/f.rs", "#[test] fn f() {}"),
            ("a/src/g.rs", "#[cfg(test)] mod h;"),
            ("a/src/g/h.rs", ""),
            ("a/src/lib.rs", text),
        ];
        let (faults, tests) = compiled(&files, "");
        let mut expected: Vec<String> =
            ["b", "c", "d", "g/h"].iter().map(|name| format!("a/src/{name}.rs{LOST}")).collect();
        expected.push(
            "a/src/lib.rs: a `cfg` with an unknown condition: write test, loom, target_arch, all, any, not".into(),
        );
        assert_eq!(faults, expected);
        assert_eq!(tests, ["a/src/e.rs: e"]);
    }

    #[test]
    fn a_function_that_is_not_run_is_no_test() {
        let text = "#[test] #[should_panic] /* text */ fn a() {} fn b() { #[test] fn inner() {} }
            // #[test] fn comment() {}
            proptest! { #![proptest_config(x)] /// text
                #[test] fn c(x in 0..1) {} fn d() {} #[test] #[ignore] fn e() {} }
            other! { #[test] fn f() {} } #[test] #[ignore = \"long\"] fn g() {} #[test] #[cfg(any())] fn h() {}
            #[cfg(any())] mod never { #[test] fn i() {} } mod tests { #[test] fn j() {} }";
        assert_eq!(
            compiled(&[("a/src/lib.rs", text)], "").1,
            ["a/src/lib.rs: a", "a/src/lib.rs: c", "a/src/lib.rs: j"]
        );
    }

    #[test]
    fn tests_of_targets_that_are_not_tested_do_not_count() {
        let test = "#[test] fn t() {}";
        let files = ["benches/b", "examples/e", "src/lib", "src/main", "tests/own", "tests/plain", "src/bin/x"];
        let files = files.map(|file| (format!("a/{file}.rs"), test));
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        let manifest = "[lib]\ntest = false\n[[test]]\nname = \"own\"\nharness = false\n[[bin]]\nname = \"m\"\n\
                        path = \"src/main.rs\"\ntest = false\n";
        assert_eq!(
            compiled(&files, manifest),
            (vec![], vec!["a/src/bin/x.rs: t".into(), "a/tests/plain.rs: t".into()])
        );
        let manifest = "[package]\nname = \"a\"\nautotests = false\nautobins = false\n";
        let lost = ["src/bin/x", "tests/own", "tests/plain"].map(|file| format!("a/{file}.rs{LOST}"));
        assert_eq!(compiled(&files, manifest).0, lost);
    }
}
