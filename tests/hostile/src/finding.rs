//! Measured figures and the bars that they must meet.

use std::{fs::File, io::Write as _, path::Path};

use anyhow::{Context as _, Result};
use roced_output::print;
use serde_json::json;

/// Bar of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bar {
    /// The figure passes up to this value.
    AtMost(f64),
    /// The figure passes from this value on.
    AtLeast(f64),
    /// The figure is reported alone.
    Reported,
}

/// One measured figure.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Description of the figure.
    pub(crate) text: String,
    /// Its value.
    pub(crate) figure: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// Its bar.
    pub(crate) bar: Bar,
}

impl Finding {
    /// A figure that must not exceed `most`.
    pub(crate) fn at_most(text: impl Into<String>, figure: f64, unit: &'static str, most: f64) -> Self {
        Self { text: text.into(), figure, unit, bar: Bar::AtMost(most) }
    }

    /// A figure that must reach `least`.
    pub(crate) fn at_least(text: impl Into<String>, figure: f64, unit: &'static str, least: f64) -> Self {
        Self { text: text.into(), figure, unit, bar: Bar::AtLeast(least) }
    }

    /// A figure without a bar.
    pub(crate) fn reported(text: impl Into<String>, figure: f64, unit: &'static str) -> Self {
        Self { text: text.into(), figure, unit, bar: Bar::Reported }
    }

    /// True if the figure meets its bar. A figure that is no number does not.
    pub(crate) fn passes(&self) -> bool {
        match self.bar {
            Bar::AtMost(most) => self.figure <= most,
            Bar::AtLeast(least) => self.figure >= least,
            Bar::Reported => self.figure.is_finite(),
        }
    }

    fn result(&self) -> &'static str {
        match (self.passes(), self.bar) {
            (false, _) => "FAILED",
            (true, Bar::Reported) => "reported",
            (true, _) => "passed",
        }
    }
}

/// Table on standard output, and lines of JSON in a file.
#[derive(Debug)]
pub(crate) struct Findings {
    json: Option<File>,
    failed: usize,
    total: usize,
}

impl Findings {
    /// Begins the table.
    pub(crate) fn begin(json: Option<&Path>) -> Result<Self> {
        let json = json.map(|path| File::create(path).with_context(|| path.display().to_string())).transpose()?;
        let (attack, figure, value, unit, bar) = ("attack", "figure", "value", "unit", "bar");
        print(format_args!("{attack:<26} {figure:<64} {value:>12} {unit:<9} {bar:<12} result\n"))?;
        Ok(Self { json, failed: 0, total: 0 })
    }

    /// Adds a figure of an attack.
    pub(crate) fn add(&mut self, attack: &str, finding: &Finding) -> Result<()> {
        let bar = match finding.bar {
            Bar::AtMost(most) => format!("<= {most}"),
            Bar::AtLeast(least) => format!(">= {least}"),
            Bar::Reported => "-".to_owned(),
        };
        let (result, figure) = (finding.result(), finding.figure);
        let (text, unit) = (&finding.text, finding.unit);
        print(format_args!("{attack:<26} {text:<64} {figure:>12.2} {unit:<9} {bar:<12} {result}\n"))?;
        if let Some(json) = &mut self.json {
            let line = json!({
                "attack": attack, "figure": finding.text, "value": figure, "unit": finding.unit, "bar": bar,
                "result": result,
            });
            writeln!(json, "{line}").context("the file of --json")?;
        }
        self.total += 1;
        self.failed += usize::from(!finding.passes());
        Ok(())
    }

    /// Ends the table; true if every figure passed.
    pub(crate) fn end(self) -> Result<bool> {
        print(format_args!("{} figures, {} FAILED\n", self.total, self.failed))?;
        Ok(self.failed == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_at_its_bar_passes_and_no_number_fails() {
        assert!(Finding::at_most("x", 1.0, "", 1.0).passes());
        assert!(Finding::at_least("x", 1.0, "", 1.0).passes());
        assert!(!Finding::at_most("x", 1.1, "", 1.0).passes());
        assert!(!Finding::at_least("x", 0.9, "", 1.0).passes());
        assert!(Finding::reported("x", 0.0, "").passes());
        for finding in [Finding::at_most("x", f64::NAN, "", 1.0), Finding::reported("x", f64::NAN, "")] {
            assert_eq!(finding.result(), "FAILED");
        }
    }
}
