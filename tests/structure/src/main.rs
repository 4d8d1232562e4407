//! Measures the structure and the prose of the workspace and holds both to their rules.
//!
//! The rules: the blocks of arrows of ARCHITECTURE.md (imports within the daemon, dependencies
//! between crates), the ceilings below, one name for one type, documents that name existing files,
//! figures as docs/performance.md has them, a map of folders that names every file, journeys with
//! steps that name symbols which these files define, lists that stand in two places, and attacks of
//! the threat model with tests that exist.
//! `scripts/check` runs `roced-structure`; it prints its figures on every run, so that a change
//! shows its effect.

mod crates;
mod documents;
mod figures;
mod files;
mod folder_map;
mod imports;
mod journeys;
mod lists;
mod names;
mod prose;
mod source;
mod threats;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::{
    imports::{ImportGraph, circles, import_graph},
    prose::Prose,
    source::Crate,
};

/// Crates with checked imports.
const CRATES: [&str; 14] = [
    "shared/types",
    "shared/abi",
    "shared/steering",
    "shared/report",
    "xdp",
    "transport",
    "cm",
    "memory",
    "daemon",
    "client",
    "verbs",
    "run",
    "perf",
    "ctl",
];

/// Folders without checked imports that have prose of their own.
const OTHERS: [&str; 16] = [
    "ebpf",
    "bench",
    "config",
    "packaging",
    "scripts",
    "tests/captures",
    "tests/e2e",
    "tests/fuzz",
    "tests/guests",
    "tests/hostile",
    "tests/interop",
    "tests/lab",
    "tests/monitoring",
    "tests/sim",
    "tests/structure",
    "tests/xdp",
];

/// The crate with arrows between its folders.
const WITH_ARROWS: &str = "daemon";

/// Most files in a circle of imports.
const CIRCLE_MAX: usize = 4;

/// Most people words, and most free relatives, per 1,000 words of prose.
const PROSE_MAX: f64 = 0.2;

/// Most words at the end of a sentence that say nothing, per 1,000 words of prose.
const TRAILING_MAX: f64 = 0.4;

/// Most comment lines that are too long, percent.
const LONG_LINES_MAX: f64 = 1.0;

#[derive(Debug, Parser)]
#[command(about = "Measures imports and prose of the workspace; exit code 1 where a rule is broken")]
struct Arguments {
    /// The workspace's folder.
    #[arg(default_value = ".")]
    workspace: PathBuf,
}

fn main() -> Result<ExitCode> {
    let Arguments { workspace } = Arguments::parse();
    let arrows = read_arrows(&workspace, "### Imports within the daemon")?;
    let crates = CRATES.iter().map(|folder| Crate::read(&workspace, folder)).collect::<Result<Vec<_>>>()?;
    let mut broken = names::repeated_types(&crates);
    broken.extend(names::functions_with_banned_words(&workspace)?);
    broken.extend(documents::missing_files(&workspace)?);
    broken.extend(figures::differences(&workspace)?);
    broken.extend(folder_map::differences(&workspace)?);
    broken.extend(journeys::broken_steps(&workspace)?);
    broken.extend(lists::differences(&workspace)?);
    broken.extend(threats::untested_rows(&workspace)?);
    let crate_arrows = read_arrows(&workspace, "### Imports between crates")?;
    broken.extend(crates::forbidden_dependencies(&workspace, &CRATES, &crate_arrows)?);
    for source in &crates {
        let (folder, graph) = (&source.folder, import_graph(source));
        if folder.as_str() == WITH_ARROWS {
            broken.extend(forbidden_imports(source, &graph, &arrows)?);
        }
        broken.extend(large_circles(source, &graph));
    }
    for (place, prose) in measured_prose(&workspace)? {
        println!("{place:16} {prose}");
        broken.extend(too_much_prose(place, &prose));
    }
    for rule in &broken {
        eprintln!("roced-structure: {rule}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The prose of each folder, of all comments (those beside the folders too), and of all documents.
fn measured_prose(workspace: &Path) -> Result<Vec<(&'static str, Prose)>> {
    let folders = CRATES.into_iter().chain(OTHERS);
    let mut measured =
        folders.map(|folder| Ok((folder, prose::of_sources(&workspace.join(folder))?))).collect::<Result<Vec<_>>>()?;
    measured.push(("all comments", prose::of_sources(workspace)?));
    measured.push(("*.md", prose::of_documents(workspace)?));
    Ok(measured)
}

/// For each top-level module, those that it may import.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Reads the lines `name ──► name, name` of the block of arrows below a heading of
/// ARCHITECTURE.md.
fn read_arrows(workspace: &Path, heading: &str) -> Result<Arrows> {
    let file = workspace.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let block = text
        .split_once(heading)
        .and_then(|(_, rest)| rest.split("```").nth(1))
        .with_context(|| format!("ARCHITECTURE.md has no block below \"{heading}\""))?;
    let arrow = |line: &str| {
        let (from, to) = line.split_once("──►")?;
        let to = to.split(',').map(str::trim).filter(|name| *name != "-").map(str::to_owned).collect();
        Some((from.trim().to_owned(), to))
    };
    Ok(block.lines().filter_map(arrow).collect())
}

/// Imports between top-level modules that have no arrow, and modules that have none at all.
fn forbidden_imports(source: &Crate, graph: &ImportGraph, arrows: &Arrows) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for (at, targets) in graph.iter().enumerate() {
        let file = &source.files[at];
        let Some(from) = file.module.first() else { continue };
        let Some(allowed) = arrows.get(from) else {
            broken.push(format!("ARCHITECTURE.md has no arrow for {}/src/{from}", source.folder));
            continue;
        };
        for target in targets {
            let target = &source.files[*target];
            let Some(to) = target.module.first() else { continue };
            if to != from && !allowed.contains(to) {
                let (file, target) = (file.path.display(), target.path.display());
                broken.push(format!("{}/src/{file} imports {target}: {from} may not import {to}", source.folder));
            }
        }
    }
    let modules: BTreeSet<&String> = source.files.iter().filter_map(|file| file.module.first()).collect();
    ensure!(arrows.keys().all(|from| modules.contains(from)), "an arrow in ARCHITECTURE.md begins at no module");
    Ok(broken)
}

/// Ceilings of [`PROSE_MAX`], [`TRAILING_MAX`] and [`LONG_LINES_MAX`] that the prose of `place`
/// exceeds.
fn too_much_prose(place: &str, prose: &Prose) -> Vec<String> {
    let figures = [
        ("people words per 1,000", prose.people_per_thousand(), PROSE_MAX),
        ("free relatives per 1,000", prose.clauses_per_thousand(), PROSE_MAX),
        ("trailing words per 1,000", prose.trailing_per_thousand(), TRAILING_MAX),
        ("percent of comment lines too long", prose.long_percent(), LONG_LINES_MAX),
    ];
    let exceeds = figures.into_iter().filter(|(_, figure, max)| figure > max);
    exceeds.map(|(name, figure, max)| format!("{place}: {figure:.2} {name}, {max} are accepted")).collect()
}

fn large_circles(source: &Crate, graph: &ImportGraph) -> Vec<String> {
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
