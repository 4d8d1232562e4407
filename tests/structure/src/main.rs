//! Measures the structure and the prose of the workspace and holds both to their rules.
//!
//! The rules: the blocks of arrows of ARCHITECTURE.md (imports within the daemon, dependencies
//! between crates), the ceilings below, one name for one type, documents that name existing files,
//! a map of folders that names every file, journeys with steps that name symbols which these files
//! define, lists that stand in two places, and tables of attacks and of clauses with tests that exist.
//! `scripts/check` runs `roced-structure`; it prints its figures on every run, so that a change
//! shows its effect.

mod arrows;
mod conformance;
mod crates;
mod definitions;
mod documents;
mod files;
mod folder_map;
mod graph;
mod imports;
mod journeys;
mod lists;
mod modules;
mod names;
mod prose;
mod source;
mod test_names;
mod threats;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::Parser;

use crate::{
    arrows::read_arrows, crates::Member, definitions::Definitions, imports::import_graph, prose::Prose, source::Crate,
};

/// Folders that are no crates and have prose of their own.
const OTHERS: [&str; 4] = ["config", "scripts", "tests/guests", "tests/monitoring"];

/// Crates that may have types with the names of others.
const NOT_SHIPPED: [&str; 2] = ["bench", "packaging"];

/// The crate with arrows between its folders.
const WITH_ARROWS: &str = "daemon";

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
    let broken = broken_rules(&workspace)?;
    for rule in &broken {
        eprintln!("roced-structure: {rule}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every rule that the workspace breaks. Prints figures.
fn broken_rules(workspace: &Path) -> Result<Vec<String>> {
    let members = crates::members(workspace)?;
    let is_checked = |member: &&Member| !member.folder.starts_with(crates::GROUP);
    let crates = members.iter().filter(is_checked).map(|member| Crate::read(workspace, member));
    let crates = crates.collect::<Result<Vec<_>>>()?;
    let shipped = crates.iter().filter(|source| !NOT_SHIPPED.iter().any(|folder| source.folder.starts_with(folder)));
    let mut broken = names::repeated_types(shipped);
    broken.extend(names::functions_with_banned_words(workspace)?);
    broken.extend(documents::missing_files(workspace)?);
    broken.extend(folder_map::differences(workspace)?);
    let definitions = Definitions::read(workspace, &crates)?;
    broken.extend(journeys::broken_steps(workspace, &definitions)?);
    broken.extend(definitions::undefined(workspace, &definitions)?);
    broken.extend(lists::differences(workspace)?);
    broken.extend(threats::untested_rows(workspace)?);
    broken.extend(conformance::faulty_rows(workspace)?);
    let arrows = read_arrows(workspace, "### Imports between crates")?;
    broken.extend(crates::forbidden_dependencies(workspace, &members, &arrows)?);
    let arrows = read_arrows(workspace, "### Imports within the daemon")?;
    for source in &crates {
        let graph = import_graph(source);
        if source.folder == WITH_ARROWS {
            broken.extend(modules::forbidden_imports(source, &graph, &arrows));
        }
        broken.extend(modules::module_circles(source, &graph, &modules::CLOSING));
        broken.extend(modules::large_circles(source, &graph));
    }
    for (place, prose) in measured_prose(workspace, &members)? {
        println!("{place:16} {prose}");
        broken.extend(too_much_prose(&place, &prose));
    }
    Ok(broken)
}

/// The prose of each folder, of all comments (those beside the folders too), and of all documents.
fn measured_prose(workspace: &Path, members: &[Member]) -> Result<Vec<(String, Prose)>> {
    let folders = members.iter().map(|member| member.folder.as_str()).chain(OTHERS);
    let of_folder = |folder: &str| Ok((folder.to_owned(), prose::of_sources(&workspace.join(folder))?));
    let mut measured = folders.map(of_folder).collect::<Result<Vec<_>>>()?;
    measured.push(("all comments".into(), prose::of_sources(workspace)?));
    measured.push(("*.md".into(), prose::of_documents(workspace)?));
    Ok(measured)
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
