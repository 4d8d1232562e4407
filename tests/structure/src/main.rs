//! Measures the structure and the prose of the workspace and holds both to their rules.
//!
//! The rules: ARCHITECTURE.md's block of arrows ("Imports within the daemon"), the ceilings below,
//! one name for one type, and documents that name existing files. `scripts/check` runs
//! `roced-structure`; it prints its figures on every run, so that a change shows its effect on
//! them.

mod documents;
mod imports;
mod names;
mod prose;
mod source;

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
    source::Crate,
};

/// Crates whose imports are looked at.
const CRATES: [&str; 8] = ["shared", "transport", "daemon", "client", "verbs", "run", "perf", "ctl"];

/// The crate whose folders have arrows.
const WITH_ARROWS: &str = "daemon";

/// Most files in a circle of imports, of each crate. Only lower ones are accepted in a change.
const CIRCLE_MAX: [(&str, usize); 3] = [("client", 14), ("transport", 8), ("verbs", 12)];
const CIRCLE_MAX_ELSEWHERE: usize = 4;

#[derive(Debug, Parser)]
#[command(about = "Measures imports and prose of the workspace; exit code 1 where a rule is broken")]
struct Arguments {
    /// The workspace's folder.
    #[arg(default_value = ".")]
    workspace: PathBuf,
}

fn main() -> Result<ExitCode> {
    let Arguments { workspace } = Arguments::parse();
    let arrows = read_arrows(&workspace)?;
    let crates = CRATES.iter().map(|folder| Crate::read(&workspace, folder)).collect::<Result<Vec<_>>>()?;
    let mut broken = names::repeated_types(&crates);
    broken.extend(documents::missing_files(&workspace)?);
    for source in &crates {
        let (folder, graph) = (&source.folder, import_graph(source));
        if folder.as_str() == WITH_ARROWS {
            broken.extend(forbidden_imports(source, &graph, &arrows)?);
        }
        broken.extend(large_circles(source, &graph));
        println!("{folder:10} {}", prose::of_folder(&workspace.join(folder), "rs")?);
    }
    println!("{:10} {}", "*.md", prose::of_folder(&workspace, "md")?);
    for rule in &broken {
        eprintln!("roced-structure: {rule}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// For each top-level module, those that it may import.
type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Reads the lines `module ──► module, module` of ARCHITECTURE.md's block of arrows.
fn read_arrows(workspace: &Path) -> Result<Arrows> {
    let file = workspace.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let block = text
        .split_once("### Imports within the daemon")
        .and_then(|(_, rest)| rest.split("```").nth(1))
        .context("ARCHITECTURE.md has no block \"Imports within the daemon\"")?;
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

fn large_circles(source: &Crate, graph: &ImportGraph) -> Vec<String> {
    let max = CIRCLE_MAX.iter().find(|(folder, _)| *folder == source.folder).map_or(CIRCLE_MAX_ELSEWHERE, |it| it.1);
    let name = |at: &usize| source.files[*at].path.display().to_string();
    let large = circles(graph).into_iter().filter(|circle| circle.len() > max);
    large
        .map(|circle| {
            let files = circle.iter().map(name).collect::<Vec<_>>().join(", ");
            format!("{}: {} files import each other, {max} may: {files}", source.folder, circle.len())
        })
        .collect()
}
