//! `roced-manuals FOLDER`: manual pages (`man/`) and completions of bash, zsh and fish
//! (`completions/`) of every program, and the documents (`doc/`), for the packages.
//!
//! The command lines are those of the programs themselves: their sources are part of this program,
//! so that a program needs no code for this.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

mod documents;

#[path = "../../ctl/src/cli.rs"]
#[expect(dead_code, reason = "read by the program alone")]
mod ctl;
#[path = "../../perf/src/cli.rs"]
#[allow(dead_code, reason = "read by the program alone, and by its tests, which read all")]
mod perf;
#[path = "../../run/src/cli.rs"]
mod run;
#[path = "../../perf/src/size.rs"]
#[allow(dead_code, reason = "read by the program alone, and by its tests, which read all")]
mod size;

/// Programs, with the section of their manual pages.
fn programs() -> [(Command, &'static str); 4] {
    [
        (roced::cli::command(), "8"),
        (ctl::CtlArgs::command(), "8"),
        (perf::PerfArgs::command(), "1"),
        (run::RunArgs::command(), "1"),
    ]
}

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("roced-manuals FOLDER")?;
    let folder = Path::new(&folder);
    write(folder).with_context(|| format!("writing to {}", folder.display()))?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    documents::write(&workspace, &folder.join("doc")).context("documents")
}

fn write(folder: &Path) -> Result<()> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    for (mut command, section) in programs() {
        command = command.disable_help_subcommand(true);
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            generate_to(shell, &mut command, &name, &completions)?;
        }
        command.build();
        pages(&man, &command, &name, section)?;
    }
    Ok(())
}

fn pages(folder: &Path, command: &Command, name: &str, section: &str) -> Result<()> {
    page(folder, command, name, section)?;
    for part in command.get_subcommands() {
        pages(folder, part, &format!("{name}-{}", part.get_name()), section)?;
    }
    Ok(())
}

fn page(folder: &Path, command: &Command, name: &str, section: &str) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let command = command.clone().version(version);
    let mut text = Vec::new();
    Man::new(command).section(section).source(format!("roced {version}")).manual("roced").render(&mut text)?;
    Ok(fs::write(folder.join(format!("{name}.{section}")), text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_pages_and_completions() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        write(folder.path()).expect("it can be written");
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_else(|_| panic!("no {name}"));
        assert!(read("man/roced.8").contains("check\\-config"));
        assert!(read("man/rocectl-counters.8").contains("device/roce0"));
        assert!(read("man/rocectl-device-remove.8").contains("off its interface"));
        assert!(read("man/roce-perf-bw.1").contains("Queue pairs"));
        assert!(read("man/roce-run.1").contains("/dev/infiniband"));
        for name in ["rocectl.bash", "_roce-perf", "roce-run.fish"] {
            assert!(!read(&format!("completions/{name}")).is_empty());
        }
    }
}
