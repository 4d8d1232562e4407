//! Pictures of a run: the watched queue, and the rates of flows, over time.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;
use roced_transport::clock::Nanos;

use crate::outcome::RunOutcome;

const SIZE: (u32, u32) = (900, 640);

/// Flows that are drawn at most.
const FLOWS_MAX: usize = 16;

/// Samples of the queue in one point: the longest of them is drawn.
const SAMPLES_PER_POINT: usize = 20;

type Point = (f64, f64);

/// Queue and rates of a run over time.
#[derive(Clone, Debug)]
pub struct Picture {
    name: &'static str,
    /// Milliseconds and kilobytes.
    queue: Vec<Point>,
    /// For each flow: milliseconds and Gbit/s.
    rates: Vec<Vec<Point>>,
}

fn millis(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

impl Picture {
    pub(crate) fn new(name: &'static str, outcome: &RunOutcome) -> Self {
        let longest = |samples: &[(Nanos, u64)]| {
            let bytes = samples.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
            (millis(samples[0].0), bytes as f64 / 1000.0)
        };
        let mut rates = vec![Vec::new(); outcome.flows.len().min(FLOWS_MAX)];
        for (time, of_flows) in outcome.rates() {
            for (line, rate) in rates.iter_mut().zip(of_flows) {
                line.push((millis(time), rate));
            }
        }
        Self { name, queue: outcome.samples.queue.chunks(SAMPLES_PER_POINT).map(longest).collect(), rates }
    }

    /// Draws it into a file of the folder with the name of the case.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn draw(&self, folder: &Path) -> anyhow::Result<()> {
        let words = self.name.split(|character: char| !character.is_ascii_alphanumeric());
        let words: Vec<_> = words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
        let path = folder.join(words.join("-") + ".svg");
        self.try_draw(&path).map_err(|error| anyhow!("{}: {error}", path.display()))
    }

    fn try_draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (upper, lower) = area.split_vertically(SIZE.1 / 2);
        chart(&upper, &format!("{}: queue", self.name), "KB", &[&self.queue])?;
        let rates: Vec<_> = self.rates.iter().map(Vec::as_slice).collect();
        chart(&lower, &format!("{}: rates of flows", self.name), "Gbit/s", &rates)?;
        area.present()?;
        Ok(())
    }
}

/// Lines over time.
fn chart(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    unit: &str,
    lines: &[&[Point]],
) -> Result<(), Box<dyn std::error::Error>> {
    let most = |of: fn(&Point) -> f64| lines.iter().flat_map(|line| line.iter()).map(of).fold(0.1, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..most(|point| point.0), 0.0..1.1 * most(|point| point.1))?;
    chart.configure_mesh().max_light_lines(1).x_desc("ms").y_desc(unit).draw()?;
    for (number, line) in lines.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        chart.draw_series(LineSeries::new(line.iter().copied(), color.stroke_width(1)))?;
    }
    Ok(())
}
