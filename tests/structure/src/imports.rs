//! The import graph of a crate: which file uses items of which other file.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Attribute, ItemMod, ItemUse, Path, UseTree, visit::Visit};

use crate::source::{Crate, SourceFile};

/// For each file of a crate, by index, the files that it uses.
pub(crate) type ImportGraph = Vec<BTreeSet<usize>>;

/// Reads the import graph; test modules are left out, for a test may use everything.
pub(crate) fn import_graph(source: &Crate) -> ImportGraph {
    let modules = source.modules();
    let paths: Vec<_> = source.files.iter().map(Paths::of).collect();
    let edge = |(at, file): (usize, &SourceFile)| {
        let resolver = Resolver { source, modules: &modules, paths: &paths };
        let targets = paths[at].found.iter().filter_map(|path| resolver.resolve(path, file, ALIASES_MAX));
        targets.filter(|target| *target != at).collect()
    };
    source.files.iter().enumerate().map(edge).collect()
}

/// Imports that lead to an item's file, one after the other, at most.
const ALIASES_MAX: u8 = 8;

/// Paths of a file that begin with `crate`, `super` or `self`.
#[derive(Default)]
struct Paths {
    found: BTreeSet<Vec<String>>,
    /// The path of each name that the file imports, for itself or for others.
    aliases: BTreeMap<String, Vec<String>>,
    is_reexport: bool,
}

impl Paths {
    fn of(file: &SourceFile) -> Self {
        let mut paths = Self::default();
        paths.visit_file(&file.syntax);
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
            UseTree::Glob(_) => self.add(prefix, None),
        }
    }

    fn add_import(&mut self, prefix: &[String], name: &str, alias: &str) {
        let path: Vec<_> = prefix.iter().cloned().chain([name.to_owned()]).collect();
        self.aliases.insert(alias.to_owned(), path);
        // A parent that passes on items of its children does not use them.
        if !self.is_reexport {
            self.add(prefix, Some(name.to_owned()));
        }
    }

    fn add(&mut self, prefix: &[String], last: Option<String>) {
        let path: Vec<_> = prefix.iter().cloned().chain(last).collect();
        if matches!(path.first().map(String::as_str), Some("crate" | "super" | "self")) {
            self.found.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_test_only) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
        self.add_tree(&mut Vec::new(), &item.tree);
    }

    /// `pub(super)` uses nothing.
    fn visit_vis_restricted(&mut self, _visibility: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&segments, None);
        syn::visit::visit_path(self, path);
    }
}

fn is_test_only(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.parse_args::<syn::Meta>().is_ok_and(|meta| meta.path().is_ident("test"))
}

struct Resolver<'a> {
    source: &'a Crate,
    modules: &'a BTreeMap<&'a [String], usize>,
    paths: &'a [Paths],
}

impl Resolver<'_> {
    /// The file that defines the item that `path` names in `file`, or else the longest known
    /// beginning of it.
    fn resolve(&self, path: &[String], file: &SourceFile, aliases: u8) -> Option<usize> {
        let mut absolute = match path.first()?.as_str() {
            "crate" => Vec::new(),
            _ => file.module.clone(),
        };
        for segment in path {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => {
                    absolute.pop()?;
                }
                name => absolute.push(name.to_owned()),
            }
        }
        let mut rest = Vec::new();
        loop {
            if let Some(at) = self.modules.get(&absolute[..]) {
                let import = rest.last().and_then(|name: &String| self.paths[*at].aliases.get(name));
                let Some(import) = import.filter(|_| aliases > 0) else { return Some(*at) };
                return self.resolve(import, &self.source.files[*at], aliases - 1).or(Some(*at));
            }
            rest.push(absolute.pop()?);
        }
    }
}

/// Groups of files that reach each other (strongly connected components of two files or more), the
/// largest first.
pub(crate) fn circles(graph: &ImportGraph) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..graph.len()).map(|from| reachable(graph, from)).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for from in 0..graph.len() {
        let circle: Vec<usize> = reached[from].iter().copied().filter(|to| reached[*to].contains(&from)).collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// `from` and every file that it uses, directly or not; `from` counts only if a path leads back to
/// it.
fn reachable(graph: &ImportGraph, from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<usize> = graph[from].iter().copied().collect();
    while let Some(at) = open.pop() {
        if reached.insert(at) {
            open.extend(&graph[at]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(files: &[(&str, &str)]) -> Crate {
        let files = files.iter().map(|(module, text)| SourceFile {
            path: module.into(),
            module: module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect(),
            syntax: syn::parse_str(text).expect("valid"),
        });
        Crate { folder: "x".into(), files: files.collect() }
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
}
