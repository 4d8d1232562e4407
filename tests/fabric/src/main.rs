//! `roced-fabric`: cases of congestion in simulated networks, with their bars. See
//! docs/simulator.md.

use std::{
    fs,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser;
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roced_fabric::{FabricReport, cases, execute, runs};
use roced_output::{print, print_error};

/// Many hosts with the real transport behind simulated switches, in virtual time.
#[derive(Parser)]
#[command(name = "roced-fabric")]
struct FabricArguments {
    /// Run the short form: few cases.
    #[arg(long)]
    quick: bool,
    /// Run only cases with one of these words in their name.
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    only: Vec<String>,
    /// Run each case with seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Name all cases.
    #[arg(long)]
    list: bool,
    /// Write all figures as JSON; "-" for the standard output, in place of the tables.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw queues and rates of each case into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

fn main() -> ExitCode {
    match start(&FabricArguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            print_error(format!("roced-fabric: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns true if all bars are met.
fn start(arguments: &FabricArguments) -> anyhow::Result<bool> {
    if arguments.list {
        let mut table = plain_table(&["case", "", "short form"]);
        for (name, text, is_quick) in cases(&arguments.only, arguments.quick) {
            table.add_row([name, text, if is_quick { "yes" } else { "" }]);
        }
        print(format!("{table}\n"))?;
        return Ok(true);
    }
    let total = runs(&arguments.only, arguments.quick, arguments.seeds);
    anyhow::ensure!(total > 0, "no case has {} in its name: --list names all", arguments.only.join(" or "));
    if let Some(folder) = &arguments.plot {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let bar = progress(total);
    let report = execute(&arguments.only, arguments.quick, arguments.seeds, &|| bar.inc(1));
    bar.finish_and_clear();
    let is_json_alone = arguments.json.as_deref() == Some(Path::new("-"));
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        if is_json_alone {
            print(text)?;
        } else {
            fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    if !is_json_alone {
        print(tables(&report))?;
    }
    if let Some(folder) = &arguments.plot {
        for picture in &report.pictures {
            picture.draw(folder)?;
        }
    }
    for violation in &report.violations {
        print_error(format!("violation: {violation}"));
    }
    Ok(report.violations.is_empty() && report.bars.iter().all(|bar| bar.met))
}

fn progress(runs: u64) -> ProgressBar {
    let bar = ProgressBar::new(runs);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left");
    bar.with_style(style.expect("a valid template"))
}

fn plain_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    table
}

/// Figures of the runs, and the bars.
fn tables(report: &FabricReport) -> String {
    let mut runs = plain_table(&[
        "run",
        "Gbit/s",
        "Jain",
        "min:max",
        "queue p99 KB",
        "drops",
        "measured",
        "overruns",
        "marks",
        "pauses",
        "frames",
        "took s",
    ]);
    for run in &report.runs {
        runs.add_row([
            run.name.clone(),
            format!("{:.2}", run.gbit_per_s),
            format!("{:.3}", run.jain),
            format!("{:.2}", run.min_to_max),
            (run.queue_p99_bytes / 1000).to_string(),
            run.drops.to_string(),
            run.drops_measured.to_string(),
            run.overruns.to_string(),
            run.marks.to_string(),
            run.pauses.to_string(),
            run.frames.to_string(),
            format!("{:.1}", run.took_s),
        ]);
    }
    let mut bars = plain_table(&["bar", "worst", "goal", ""]);
    for bar in &report.bars {
        let value = format!("{:.3}", bar.value);
        bars.add_row([bar.name.as_str(), &value, &bar.goal, if bar.met { "met" } else { "NOT MET" }]);
    }
    let missed = report.bars.iter().filter(|bar| !bar.met).count();
    format!("{runs}\n\n{bars}\n{} bars, {missed} not met\n", report.bars.len())
}
