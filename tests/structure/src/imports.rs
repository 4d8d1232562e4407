//! The import graph of a crate: which file uses items of which other file.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Attribute, ItemFn, ItemImpl, ItemMod, ItemUse, Macro, Meta, Path, UseTree, visit::Visit};

use crate::source::{Crate, SourceFile};

/// For each file of a crate, by index, the files that it uses.
pub(crate) type ImportGraph = Vec<BTreeSet<usize>>;

/// Reads the import graph; test modules are left out, because a test may use everything.
pub(crate) fn import_graph(source: &Crate) -> ImportGraph {
    let modules = source.modules();
    let paths: Vec<_> = source.files.iter().map(|file| Paths::of(file, &source.name)).collect();
    let resolver = Resolver { modules: &modules, paths: &paths };
    let edge = |(at, file): (usize, &SourceFile)| {
        let found = paths[at].found.iter().filter(|_| !resolver.is_of_tests(&file.module));
        let targets = found.filter_map(|path| resolver.resolve(path, ALIASES_MAX));
        targets.filter(|target| *target != at).collect()
    };
    source.files.iter().enumerate().map(edge).collect()
}

/// Imports that lead to an item's file, one after the other, at most.
const ALIASES_MAX: u8 = 8;

/// Paths of a file, from the crate's root, that begin with `crate`, `super`, `self`, the library's
/// name or an imported one. A child that its parent calls by its bare name is a part of the parent.
#[derive(Default)]
struct Paths<'a> {
    /// The module that is visited: the file's, or an inline one in it.
    module: Vec<String>,
    /// The name of the crate's library, which its program uses.
    library: &'a str,
    found: BTreeSet<Vec<String>>,
    /// Paths that begin with another name.
    bare: BTreeSet<Vec<String>>,
    /// The path of each name that a module imports, for itself or for others.
    aliases: BTreeMap<Vec<String>, Vec<String>>,
    /// Names of children's items that a module only passes on.
    passed_on: BTreeSet<Vec<String>>,
    is_reexport: bool,
    /// Modules that only tests have.
    tests: BTreeSet<String>,
}

impl<'a> Paths<'a> {
    fn of(file: &'a SourceFile, library: &'a str) -> Self {
        let mut paths = Self { module: file.module.clone(), library, ..Self::default() };
        paths.visit_file(&file.syntax);
        let is_import = |path: &&Vec<String>| {
            let names = (1..path.len()).map(|length| &path[..length]);
            let mut names = names.filter(|name| paths.aliases.contains_key(*name));
            names.any(|name| !paths.passed_on.contains(name))
        };
        let imported: Vec<_> = paths.bare.iter().filter(is_import).cloned().collect();
        paths.found.extend(imported);
        paths
    }

    fn add_tree(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_tree(prefix, &path.tree);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.add_tree(prefix, item)),
            UseTree::Name(name) => self.add_import(prefix, &name.ident.to_string(), &name.ident.to_string()),
            UseTree::Rename(rename) => self.add_import(prefix, &rename.ident.to_string(), &rename.rename.to_string()),
            UseTree::Glob(_) => self.add(prefix.clone()),
        }
    }

    fn add_import(&mut self, prefix: &[String], name: &str, alias: &str) {
        let path: Vec<_> = prefix.iter().cloned().chain([name.to_owned()]).collect();
        let alias = if alias == "self" { prefix.last().map_or("", |name| name) } else { alias };
        let key: Vec<_> = self.module.iter().cloned().chain([alias.to_owned()]).collect();
        let Some(target) = self.rooted(&path) else { return };
        // A parent that passes on items of its children does not use them.
        let is_passed_on = self.is_reexport && is_rooted(&path) && target.starts_with(&self.module);
        if is_passed_on {
            self.passed_on.insert(key.clone());
        } else {
            self.add(path);
        }
        if key != target {
            self.aliases.insert(key, target);
        }
    }

    fn add(&mut self, path: Vec<String>) {
        if path.len() < 2 || path[0].is_empty() {
            return;
        }
        let is_rooted = is_rooted(&path) || path[0] == self.library;
        if let Some(path) = self.rooted(&path) {
            if is_rooted { &mut self.found } else { &mut self.bare }.insert(path);
        }
    }

    /// A path from the crate's root, of one that is written in the module.
    fn rooted(&self, path: &[String]) -> Option<Vec<String>> {
        let is_absolute = path.first().is_some_and(|first| first == "crate" || first == self.library);
        let mut absolute = if is_absolute { Vec::new() } else { self.module.clone() };
        for segment in &path[usize::from(is_absolute)..] {
            match segment.as_str() {
                "self" => {}
                "super" => _ = absolute.pop()?,
                name => absolute.push(name.to_owned()),
            }
        }
        Some(absolute)
    }

    fn add_tokens(&mut self, tokens: TokenStream) {
        for path in paths_of_tokens(tokens) {
            self.add(path);
        }
    }

    /// Paths in strings of an attribute: `#[serde(default = "crate::a::b")]`.
    fn add_strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.add_strings(group.stream()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let Some(text) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { continue };
                    if let Ok(path) = syn::parse_str::<Path>(text) {
                        self.visit_path(&path);
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_rooted(path: &[String]) -> bool {
    path.first().is_some_and(|first| matches!(first.as_str(), "crate" | "super" | "self"))
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_test_only) {
            self.module.push(module.ident.to_string());
            syn::visit::visit_item_mod(self, module);
            self.module.pop();
        } else if module.content.is_none() {
            self.tests.insert(module.ident.to_string());
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !item.attrs.iter().any(is_test_only) {
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !item.attrs.iter().any(is_test_only) {
            syn::visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !item.attrs.iter().any(is_test_only) {
            self.is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
            self.add_tree(&mut Vec::new(), &item.tree);
        }
    }

    /// `pub(super)` uses nothing.
    fn visit_vis_restricted(&mut self, _visibility: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast Path) {
        self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.add_tokens(called.tokens.clone());
        syn::visit::visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.add_tokens(list.tokens.clone());
            self.add_strings(list.tokens.clone());
        }
        syn::visit::visit_attribute(self, attribute);
    }
}

/// Paths of two names or more in the tokens of a macro: `a::b`, and each of `a::{b, c::d}`.
fn paths_of_tokens(tokens: TokenStream) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Ident(name) => {
                if colons != 2 {
                    paths.push(std::mem::take(&mut path));
                }
                path.push(name.to_string());
            }
            TokenTree::Group(group) => {
                let is_list = colons == 2 && group.delimiter() == Delimiter::Brace;
                let prefix = if is_list { std::mem::take(&mut path) } else { Vec::new() };
                paths.push(std::mem::take(&mut path));
                let inner = paths_of_list(group.stream(), is_list);
                paths.extend(inner.into_iter().map(|inner| prefix.iter().cloned().chain(inner).collect()));
            }
            _ => paths.push(std::mem::take(&mut path)),
        }
        colons = 0;
    }
    paths.push(path);
    paths.retain(|path| path.len() > 1);
    paths
}

/// Paths of a group's tokens; of a list in a path also those of one name.
fn paths_of_list(tokens: TokenStream, is_list: bool) -> Vec<Vec<String>> {
    let single = |pair: &[TokenTree]| match pair {
        [TokenTree::Punct(before), TokenTree::Ident(name), TokenTree::Punct(after)] => {
            let ends = [before.as_char(), after.as_char()];
            ends.iter().all(|end| *end == ',').then(|| vec![name.to_string()])
        }
        _ => None,
    };
    let mut paths = Vec::new();
    if is_list {
        let comma = || TokenTree::Punct(proc_macro2::Punct::new(',', proc_macro2::Spacing::Alone));
        let framed: Vec<_> = [comma()].into_iter().chain(tokens.clone()).chain([comma()]).collect();
        paths.extend(framed.windows(3).filter_map(single));
    }
    paths.extend(paths_of_tokens(tokens));
    paths
}

/// Whether an attribute is `cfg(test)` or `cfg(all(test, ...))`.
pub(crate) fn is_test_only(attribute: &Attribute) -> bool {
    let is_test = |meta: &Meta| match meta {
        Meta::List(list) if list.path.is_ident("all") => {
            list.tokens.clone().into_iter().any(|token| matches!(&token, TokenTree::Ident(name) if name == "test"))
        }
        meta => meta.path().is_ident("test"),
    };
    attribute.path().is_ident("cfg") && attribute.parse_args::<Meta>().is_ok_and(|meta| is_test(&meta))
}

struct Resolver<'a> {
    modules: &'a BTreeMap<&'a [String], usize>,
    paths: &'a [Paths<'a>],
}

impl Resolver<'_> {
    /// The file that defines the item of a path from the root, or else the longest known beginning
    /// of it.
    fn resolve(&self, path: &[String], aliases: u8) -> Option<usize> {
        let known = (0..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length]))?;
        let at = self.modules[&path[..known]];
        let mut longer = known + 1..=path.len();
        let import = longer.find_map(|length| Some((length, self.paths[at].aliases.get(&path[..length])?)));
        let Some((length, target)) = import.filter(|_| aliases > 0) else { return Some(at) };
        self.resolve(&[&target[..], &path[length..]].concat(), aliases - 1).or(Some(at))
    }

    /// Whether only tests have the module, or one that it is in.
    fn is_of_tests(&self, module: &[String]) -> bool {
        (0..module.len()).any(|depth| {
            let parent = self.modules.get(&module[..depth]);
            parent.is_some_and(|at| self.paths[*at].tests.contains(&module[depth]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::circles;

    fn source(files: &[(&str, &str)]) -> Crate {
        let files = files.iter().map(|(module, text)| SourceFile {
            path: if module.is_empty() { "lib.rs".into() } else { module.into() },
            module: module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            syntax: syn::parse_str(text).expect("valid"),
        });
        Crate { folder: "x".into(), name: "library".into(), files: files.collect() }
    }

    #[test]
    fn nested_uses_and_paths_lead_to_the_file_that_defines_them() {
        let source = source(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::{self, Thing}; fn f() -> crate::b::Other {}"),
            ("b", "mod c; pub use c::Thing;"),
            ("b::c", "use super::super::a::f; #[cfg(test)] mod tests { use crate::b::Other; }"),
        ]);
        let graph = import_graph(&source);
        assert_eq!(graph[1], BTreeSet::from([2, 3]), "b::Thing is of b::c");
        assert_eq!(graph[2], BTreeSet::new());
        assert_eq!(graph[3], BTreeSet::from([1]));
        assert_eq!(circles(&graph), [vec![1, 3]]);
    }

    #[test]
    fn only_items_of_children_are_passed_on_without_a_use() {
        let source = source(&[
            ("", "pub use a::X;"),
            ("a", "pub(crate) struct X;"),
            ("b", "pub(crate) use crate::a::X; pub(crate) use self::c::Y; pub use crate::b::c::Z; fn f() -> X { X }"),
            ("b::c", "pub(super) use super::super::a::X as W;"),
        ]);
        let graph = import_graph(&source);
        assert_eq!(graph, [BTreeSet::new(), BTreeSet::new(), BTreeSet::from([1]), BTreeSet::from([1])]);
    }

    #[test]
    fn paths_of_inline_modules_begin_at_them() {
        let source = source(&[
            ("", ""),
            ("a", "mod x { use super::super::b::f; mod y { fn g() { super::super::super::c::f(); super::f(); } } }"),
            ("b", "mod x { use super::c::f; } pub(crate) mod z { pub(crate) use crate::d::Z; }"),
            ("c", "use crate::b::z::Z;"),
            ("d", ""),
            ("b::c", ""),
        ]);
        let targets = [vec![], vec![2, 3], vec![4, 5], vec![4], vec![], vec![]];
        assert_eq!(import_graph(&source), targets.map(BTreeSet::from_iter));
    }

    #[test]
    fn paths_that_begin_at_an_import_are_imports() {
        let source = source(&[
            ("", ""),
            ("a", "use crate::b; fn f() { b::c::g(); } fn h() { b::d::g(); }"),
            ("b", "pub(crate) use crate::e as c; pub(crate) mod d;"),
            ("b::d", "pub(crate) use self::x::Y; fn g() { Y::new(); }"),
            ("b::d::x", "use crate::b::{self as other}; fn f() { other::c::g() }"),
            ("e", "#[serde(default = \"crate::a::x\", with = \"a\")] #[derive(crate::b::D)] /// crate::b\nstruct S;"),
        ]);
        let targets = [vec![], vec![2, 3, 5], vec![5], vec![], vec![2, 5], vec![1, 2]];
        assert_eq!(import_graph(&source), targets.map(BTreeSet::from_iter));
    }

    #[test]
    fn paths_in_macros_are_imports() {
        let text = "fn g() { assert!(f(1, crate::a::f())); vec![x::y(), super::b::z]; }
            macro_rules! m { () => { $crate::c::{One, d::Two} } }
            pub(crate) struct S;";
        let source = source(&[("", ""), ("a", ""), ("b", ""), ("c", ""), ("c::d", ""), ("e", text)]);
        assert_eq!(import_graph(&source)[5], BTreeSet::from([1, 2, 3, 4]));
    }

    #[test]
    fn modules_of_tests_import_without_a_rule() {
        let source = source(&[
            ("", "#[cfg(test)] mod t; #[cfg(all(test, not(loom)))] mod u;"),
            ("a", "#[cfg(test)] use crate::t::X; #[cfg(test)] impl crate::t::X {} #[cfg(not(test))] use crate::u::Y;"),
            ("t", "use crate::a::Z;"),
            ("u", "use crate::a::Z;"),
        ]);
        let none = BTreeSet::new;
        assert_eq!(import_graph(&source), [none(), BTreeSet::from([3]), none(), none()]);
    }

    #[test]
    fn the_program_of_a_crate_uses_its_library() {
        let mut source = source(&[("", "mod a;"), ("a", ""), ("main", "fn main() { library::a::run(); }")]);
        source.files[2].path = "main.rs".into();
        assert_eq!(import_graph(&source)[2], BTreeSet::from([1]));
    }
}
