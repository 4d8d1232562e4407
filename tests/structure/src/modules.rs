//! Imports between the top-level modules of a crate: arrows that they need, circles that they make.
//!
//! A file or folder of `src` is a module; `lib.rs` and `main.rs` are the modules `lib` and `main`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    arrows::{self, Arrows},
    graph::circles,
    imports::ImportGraph,
    source::Crate,
};

/// Most files in a circle of imports.
const CIRCLE_MAX: usize = 4;

/// An import that closes a circle of modules, and is accepted.
pub(crate) struct Closing {
    folder: &'static str,
    from: &'static str,
    to: &'static str,
    reason: &'static str,
}

/// Imports that close circles of modules: without them no crate has one.
pub(crate) const CLOSING: [Closing; 11] = [
    closing(
        "memory",
        "quota",
        "mapping",
        "a mapping has room in the quota, which keeps the mappings that cannot be unmapped yet",
    ),
    closing(
        "memory",
        "accounts",
        "stall_budget",
        "an account has a budget, and a budget that is spent ends sessions of its account",
    ),
    closing(
        "client",
        "device",
        "region_memory",
        "a device finds memory by its address, and memory is registered at its device",
    ),
    closing("client", "cq", "channel", "a queue reports to a channel, which returns the queue of an event"),
    closing("verbs", "qp", "wr", "a queue pair has the functions of its work requests in it"),
    closing("verbs", "mw", "post", "a bind is posted as work, and work binds windows"),
    closing("verbs", "cq", "channel", "a queue reports to a channel, which counts events of the queue"),
    closing("verbs", "cq", "cq_ex", "a queue has its functions in it"),
    closing("verbs", "mr", "buf", "a region of a buffer is in the buffer, which registers it"),
    closing("tests/fuzz", "shared", "world", "a shared queue is a part of the world that the targets begin with"),
    closing("tests/hostile", "actor", "acts", "the program of an actor runs an act, and acts start such programs"),
];

const fn closing(folder: &'static str, from: &'static str, to: &'static str, reason: &'static str) -> Closing {
    Closing { folder, from, to, reason }
}

/// Imports of modules by module, each with one import of files as an example.
type ModuleGraph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (usize, usize)>>;

fn module_graph<'a>(source: &'a Crate, graph: &ImportGraph) -> ModuleGraph<'a> {
    let mut modules = ModuleGraph::new();
    for (at, targets) in graph.iter().enumerate() {
        let from = source.files[at].top();
        let imports = modules.entry(from).or_default();
        for target in targets {
            let to = source.files[*target].top();
            if to != from {
                imports.entry(to).or_insert((at, *target));
            }
        }
    }
    modules
}

/// Imports between modules that have no arrow, modules without one, and faults of the arrows.
pub(crate) fn forbidden_imports(source: &Crate, graph: &ImportGraph, arrows: &Arrows) -> Vec<String> {
    let mut broken = Vec::new();
    let modules = module_graph(source, graph);
    for (from, imports) in &modules {
        let Some(allowed) = arrows.get(*from) else {
            // A root that only declares modules needs none.
            if !imports.is_empty() || *from != "lib" {
                broken.push(format!("ARCHITECTURE.md has no arrow for {}/src/{from}", source.folder));
            }
            continue;
        };
        for (to, (file, target)) in imports.iter().filter(|(to, _)| !allowed.contains(**to)) {
            let [file, target] = [file, target].map(|at| source.files[*at].path.display());
            broken.push(format!("{}/src/{file} imports {target}: {from} may not import {to}", source.folder));
        }
    }
    let names = |imports: &BTreeMap<&str, _>| imports.keys().map(|to| (*to).to_owned()).collect();
    let used = modules.iter().map(|(from, imports)| ((*from).to_owned(), names(imports))).collect();
    let faults = arrows::faults(arrows, &used);
    broken
        .extend(faults.into_iter().map(|fault| format!("ARCHITECTURE.md, imports within {}: {fault}", source.folder)));
    broken
}

/// Circles of modules without the imports that `closing` accepts, and imports of `closing` that
/// close no circle.
pub(crate) fn module_circles(source: &Crate, graph: &ImportGraph, closing: &[Closing]) -> Vec<String> {
    let modules = module_graph(source, graph);
    let names: Vec<&str> = modules.keys().copied().collect();
    let at = |name: &str| names.binary_search(&name).expect("a module");
    let mut edges: Vec<BTreeSet<usize>> =
        names.iter().map(|from| modules[from].keys().map(|to| at(to)).collect()).collect();
    let all = circles(&edges);
    let mut broken = Vec::new();
    for Closing { from, to, reason, .. } in closing.iter().filter(|it| it.folder == source.folder) {
        let ends = [from, to].map(|name| names.binary_search(name).ok());
        let [Some(from_at), Some(to_at)] = ends else {
            broken.push(format!("{}: there are no modules {from} and {to} ({reason})", source.folder));
            continue;
        };
        let is_closing = all.iter().any(|circle| circle.contains(&from_at) && circle.contains(&to_at));
        if !edges[from_at].remove(&to_at) || !is_closing {
            broken.push(format!("{}: {from} -> {to} closes no circle ({reason})", source.folder));
        }
    }
    for circle in circles(&edges) {
        let within = circle.iter().flat_map(|from| edges[*from].iter().map(move |to| (*from, *to)));
        let lines = within.filter(|(_, to)| circle.contains(to)).map(|(from, to)| {
            let (from, to) = (names[from], names[to]);
            let (file, target) = modules[from][to];
            let [file, target] = [file, target].map(|at| source.files[at].path.display());
            format!("\n  {from} -> {to}: {file} -> {target}")
        });
        broken.push(format!("{}: modules import each other:{}", source.folder, lines.collect::<String>()));
    }
    broken
}

/// Circles of more than [`CIRCLE_MAX`] files.
pub(crate) fn large_circles(source: &Crate, graph: &ImportGraph) -> Vec<String> {
    let name = |at: &usize| source.files[*at].path.display().to_string();
    let large = circles(graph).into_iter().filter(|circle| circle.len() > CIRCLE_MAX);
    large
        .map(|circle| {
            let edges = circle.iter().flat_map(|from| {
                let targets = graph[*from].iter().filter(|to| circle.contains(to));
                targets.map(move |to| format!("\n  {} -> {}", name(from), name(to)))
            });
            let edges: String = edges.collect();
            format!("{}: {} files import each other, {CIRCLE_MAX} may:{edges}", source.folder, circle.len())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceFile;

    /// A crate of these files, and their imports of each other.
    fn source(files: &[(&str, &[&str])]) -> (Crate, ImportGraph) {
        let at = |name: &str| files.iter().position(|(path, _)| *path == name).expect("a file");
        let graph = files.iter().map(|(_, imports)| imports.iter().map(|name| at(name)).collect()).collect();
        let file = |(path, _): &(&str, _)| SourceFile::new(path.as_ref(), true, syn::parse_str("").expect("valid"));
        (Crate { folder: "x".into(), name: "x".into(), files: files.iter().map(file).collect() }, graph)
    }

    #[test]
    fn a_file_and_a_folder_make_a_circle() {
        let (source, graph) =
            source(&[("lib.rs", &[]), ("qp/mod.rs", &["ah.rs"]), ("ah.rs", &["qp/state.rs"]), ("qp/state.rs", &[])]);
        let circle = "x: modules import each other:\n  ah -> qp: ah.rs -> qp/state.rs\n  qp -> ah: qp/mod.rs -> ah.rs";
        assert_eq!(module_circles(&source, &graph, &[]), [circle]);
        let closing = |from, to| closing("x", from, to, "because");
        assert_eq!(module_circles(&source, &graph, &[closing("ah", "qp")]), [""; 0]);
        let wrong = module_circles(&source, &graph, &[closing("ah", "qp"), closing("ah", "lib"), closing("ah", "y")]);
        assert_eq!(wrong, ["x: ah -> lib closes no circle (because)", "x: there are no modules ah and y (because)"]);
    }

    #[test]
    fn roots_need_arrows_as_sources_and_as_targets() {
        let (source, graph) =
            source(&[("lib.rs", &[]), ("main.rs", &["app.rs"]), ("app.rs", &["lib.rs"]), ("app/a.rs", &["app.rs"])]);
        let arrows = |list: &[(&str, &[&str])]| -> Arrows {
            let names = |to: &[&str]| to.iter().map(|name| (*name).to_owned()).collect();
            list.iter().map(|(from, to)| ((*from).to_owned(), names(to))).collect()
        };
        assert_eq!(forbidden_imports(&source, &graph, &arrows(&[("main", &["app"]), ("app", &["lib"])])), [""; 0]);
        let broken =
            ["x/src/app.rs imports lib.rs: app may not import lib", "ARCHITECTURE.md has no arrow for x/src/main"];
        assert_eq!(forbidden_imports(&source, &graph, &arrows(&[("app", &[])])), broken);
    }

    #[test]
    fn five_files_are_too_many_for_a_circle() {
        let (source, graph) = source(&[
            ("a/a.rs", &["a/b.rs"]),
            ("a/b.rs", &["a/c.rs"]),
            ("a/c.rs", &["a/d.rs"]),
            ("a/d.rs", &["a/e.rs"]),
            ("a/e.rs", &["a/a.rs"]),
        ]);
        assert_eq!(large_circles(&source, &graph).len(), 1);
        assert_eq!(module_circles(&source, &graph, &[]), [""; 0]);
    }
}
