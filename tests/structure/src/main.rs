//! Measures the structure and the prose of the workspace and holds both to their rules.
//!
//! The rules: the blocks of arrows of ARCHITECTURE.md (imports within the daemon, dependencies
//! between crates), ceilings of prose, one name for one type, documents that name existing files,
//! figures as docs/performance.md has them, a map of folders that names every file, journeys with
//! steps that name symbols which these files define, lists that stand in two places, tables of
//! attacks and clauses with tests that run, no source file without a `mod` line, no test that
//! nothing runs, no example without a test, dependencies with reasons and users, names of files
//! with a meaning, headings of the changelog in order, no operating system in crates without `std`, no construct that hides something
//! from these rules, American spelling, widths of comments, sizes of folders, files and functions,
//! no seeds of proptest without their source file, scripts and workflows of the gates as they are,
//! no settings that turn checks off, a row of docs/counters.md for each counter, no script with a
//! trap for its end and none for signals, and names that exist: metrics in rules and queries,
//! settings in blocks of documents, options of programs and scripts.
//! `scripts/check` runs `roced-structure`; it prints its figures on every run, so that a change
//! shows its effect.

mod arrows;
mod ceilings;
mod changelog;
mod comments;
mod compiled;
mod config_blocks;
mod conformance;
mod constructs;
mod counter_table;
mod crates;
mod definitions;
mod dependencies;
mod documents;
mod examples;
mod figures;
mod file_names;
mod files;
mod folder_map;
mod folder_sizes;
mod gates;
mod graph;
mod imports;
mod isolation;
mod journeys;
mod levels;
mod lists;
mod mentions;
mod messages;
mod metrics;
mod modules;
mod names;
mod programs;
mod prose;
mod quoted;
mod script_options;
mod script_signals;
mod seeds;
mod settings;
mod sizes;
mod source;
mod spelling;
mod taken;
mod test_names;
mod threats;
mod unrun;
mod verbatim;
mod widths;
mod workflows;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::Parser;

use crate::{
    arrows::read_arrows, compiled::Compiled, crates::Member, definitions::Definitions, imports::import_graph,
    prose::Prose, source::Crate,
};

/// Folders that are no crates and have prose of their own.
const OTHERS: [&str; 4] = ["config", "scripts", "tests/guests", "tests/monitoring"];

/// Crates that may have types with the names of others.
const NOT_SHIPPED: [&str; 2] = ["bench", "packaging"];

/// The crate with arrows between its folders.
const WITH_ARROWS: &str = "daemon";

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
    let all = members.iter().map(|member| Crate::read(workspace, member)).collect::<Result<Vec<_>>>()?;
    let is_of_tests = |source: &Crate| Path::new(&source.folder).starts_with(crates::GROUP);
    let (tests, crates): (Vec<Crate>, Vec<Crate>) = all.into_iter().partition(is_of_tests);
    let is_shipped = |source: &&Crate| !NOT_SHIPPED.iter().any(|folder| Path::new(&source.folder).starts_with(folder));
    let sources = files::sources(workspace)?;
    let mut broken = names::repeated_types(crates.iter().filter(is_shipped), &sources)?;
    broken.extend(crates::outsiders(workspace, &members)?);
    broken.extend(dependencies::faults(workspace, &members)?);
    broken.extend(file_names::faults(workspace)?);
    broken.extend(changelog::faults(workspace)?);
    broken.extend(names::functions_with_banned_words(workspace)?);
    broken.extend(documents::missing_files(workspace)?);
    broken.extend(quoted::unknown(workspace, &members)?);
    broken.extend(config_blocks::unknown(workspace)?);
    broken.extend(metrics::unknown(workspace)?);
    broken.extend(counter_table::differences(workspace)?);
    broken.extend(programs::faults(workspace)?);
    broken.extend(script_options::faults(workspace)?);
    broken.extend(script_signals::untrapped(workspace)?);
    broken.extend(mentions::missing(workspace)?);
    broken.extend(figures::differences(workspace)?);
    broken.extend(folder_map::differences(workspace)?);
    let definitions = Definitions::read(workspace, &crates)?;
    broken.extend(journeys::broken_steps(workspace, &definitions)?);
    broken.extend(definitions::undefined(workspace, &definitions)?);
    broken.extend(lists::differences(workspace)?);
    broken.extend(seeds::unread(workspace)?);
    broken.extend(spelling::british(workspace)?);
    broken.extend(widths::too_wide(workspace)?);
    let compiled = Compiled::read(&sources, &members)?;
    broken.extend(compiled.faults(&sources));
    broken.extend(folder_sizes::too_large(&sources, &members));
    broken.extend(sizes::too_large(&sources, &members)?);
    broken.extend(constructs::forbidden(&sources, &members, &compiled)?);
    broken.extend(taken::faults(workspace, &sources, &members)?);
    broken.extend(unrun::faults(workspace, &sources, &members)?);
    broken.extend(examples::unrun(workspace, &sources, &members)?);
    broken.extend(gates::faults(workspace, &members)?);
    broken.extend(verbatim::differences(workspace)?);
    broken.extend(workflows::faults(workspace)?);
    broken.extend(settings::faults(workspace, &members)?);
    broken.extend(levels::faults(&sources)?);
    broken.extend(threats::untested_rows(workspace, &compiled)?);
    broken.extend(conformance::faulty_rows(workspace, &compiled)?);
    let arrows = read_arrows(workspace, "### Imports between crates")?;
    let inherited = crates::inherited_dependencies(workspace)?;
    broken.extend(crates::forbidden_dependencies(&members, &inherited, &arrows));
    broken.extend(isolation::faults(&members, &inherited, &sources)?);
    let arrows = read_arrows(workspace, "### Imports within the daemon")?;
    for source in crates.iter().chain(&tests) {
        let graph = import_graph(source);
        if source.folder == WITH_ARROWS {
            broken.extend(modules::forbidden_imports(source, &graph, &arrows));
        }
        broken.extend(modules::module_circles(source, &graph, &modules::CLOSING));
        broken.extend(modules::large_circles(source, &graph));
    }
    let places = measured_prose(workspace, &members)?;
    broken.extend(ceilings::differing(&places));
    Ok(broken)
}

/// The prose of each place. Prints that of folders, and the sums of comments and of documents.
fn measured_prose(workspace: &Path, members: &[Member]) -> Result<BTreeMap<String, Prose>> {
    let folders: Vec<&str> = members.iter().map(|member| member.folder.as_str()).chain(OTHERS).collect();
    let places = prose::by_place(workspace, &folders)?;
    let mut sums = [("all comments", Prose::default()), ("*.md", Prose::default())];
    for (place, prose) in &places {
        let is_document = place.ends_with(".md");
        sums[usize::from(is_document)].1.add(*prose);
        if !is_document {
            println!("{place:16} {prose}");
        }
    }
    for (name, prose) in sums {
        println!("{name:16} {prose}");
    }
    Ok(places)
}
