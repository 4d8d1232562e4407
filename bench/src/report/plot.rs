//! Plots, as SVG.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use super::BenchReport;
use crate::ratios::Figure;

const SIZE: (u32, u32) = (900, 540);

/// A named line of points.
type PlotLine = (String, Vec<(f64, f64)>);

impl BenchReport {
    /// Throughput by size, and the distribution of round trips. Missing measurements are not drawn.
    pub(super) fn plot(&self, folder: &Path) -> anyhow::Result<()> {
        draw(
            &folder.join("throughput.svg"),
            &self.throughput(),
            &Axes {
                title: "Throughput by message size, path MTU 4096, one queue pair",
                x: "message",
                y: "Gbit/s of payload",
                x_text: size_text,
                y_text: plain_text,
            },
        )?;
        draw(
            &folder.join("latency.svg"),
            &self.latency(),
            &Axes {
                title: "Round trips of 64 bytes",
                x: "share of the round trips that took no longer",
                y: "us",
                x_text: share_text,
                y_text: power_text,
            },
        )
    }

    fn throughput(&self) -> Vec<PlotLine> {
        let sizes = [("64", 6.0), ("512", 9.0), ("4k", 12.0), ("64k", 16.0), ("1m_mtu4096", 20.0), ("8m", 23.0)];
        let of = |op: &str| {
            let point =
                |(name, log): &(&str, f64)| Some((*log, self.median(&format!("{op}_{name}"), Figure::Throughput)?));
            (op.to_owned(), sizes.iter().filter_map(point).collect())
        };
        let level = |name: &str| {
            let at = self.median(name, Figure::Throughput);
            (name.to_owned(), at.map_or_else(Vec::new, |at| vec![(6.0, at), (23.0, at)]))
        };
        let mut lines: Vec<PlotLine> = ["write", "read", "send"].map(of).into();
        lines.extend(["raw_4154", "tcp_no_offload", "tcp"].map(level));
        lines.into_iter().filter(|(_, points)| points.len() > 1).collect()
    }

    fn latency(&self) -> Vec<PlotLine> {
        let names = ["raw_ping_64", "ping_send_64", "ping_write_64", "tcp_ping_64", "tcp_ping_64_busy"];
        let line = |name: &str| {
            let rtt = self.results.of(name)?.last()?.rtt_us.as_ref()?;
            let shown = rtt.quantiles.iter().filter(|(share, _)| *share < 0.99999);
            let points = shown.map(|(share, us)| (-(1.0 - share).log10(), us.max(0.1).log10()));
            Some((name.to_owned(), points.collect()))
        };
        names.iter().filter_map(|name| line(name)).collect()
    }
}

struct Axes {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    x_text: fn(&f64) -> String,
    y_text: fn(&f64) -> String,
}

fn plain_text(value: &f64) -> String {
    format!("{value:.0}")
}

/// Of a size's logarithm to base 2.
fn size_text(log: &f64) -> String {
    let log = log.round().clamp(0.0, 40.0) as u32;
    let (unit, of) = [("MiB", 20), ("KiB", 10)].into_iter().find(|(_, of)| log >= *of).unwrap_or(("B", 0));
    format!("{} {unit}", 1_u64 << (log - of))
}

/// Of the number of nines.
fn share_text(nines: &f64) -> String {
    format!("{:.3} %", 100.0 * (1.0 - 10_f64.powf(-nines)))
}

/// Of a logarithm to base 10.
fn power_text(log: &f64) -> String {
    let value = 10_f64.powf(*log);
    if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn draw(path: &Path, lines: &[PlotLine], axes: &Axes) -> anyhow::Result<()> {
    if lines.iter().all(|(_, points)| points.is_empty()) {
        return Ok(());
    }
    try_draw(path, lines, axes).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn try_draw(path: &Path, lines: &[PlotLine], axes: &Axes) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let ends = |of: fn(&(f64, f64)) -> f64| {
        let (low, high) = points().map(of).fold((0.0_f64, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
        low..high * 1.1
    };
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(axes.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(ends(|at| at.0), ends(|at| at.1))?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&axes.x_text)
        .y_label_formatter(&axes.y_text)
        .draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let series = chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        series.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_powers_of_the_logarithms() {
        assert_eq!([6.0, 12.0, 20.0, 23.0].map(|log| size_text(&log)), ["64 B", "4 KiB", "1 MiB", "8 MiB"]);
        assert_eq!([1.0, 2.0, 3.0].map(|nines| share_text(&nines)), ["90.000 %", "99.000 %", "99.900 %"]);
        assert_eq!([0.5, 2.0].map(|log| power_text(&log)), ["3.2", "100"]);
    }
}
