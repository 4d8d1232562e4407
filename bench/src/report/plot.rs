//! Plots, as SVG.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use super::Report;
use crate::ratios::Figure;

const SIZE: (u32, u32) = (900, 540);

/// A named line of points.
type Line = (String, Vec<(f64, f64)>);

impl Report {
    /// Throughput by size, and the distribution of round trips. What was not measured is not drawn.
    pub(super) fn plot(&self, folder: &Path) -> anyhow::Result<()> {
        draw(
            &folder.join("throughput.svg"),
            &self.throughput(),
            &Axes {
                title: "Throughput by message size, path MTU 4096, one queue pair",
                x: "bytes of a message (log2)",
                y: "Gbit/s of payload",
            },
        )?;
        draw(
            &folder.join("latency.svg"),
            &self.latency(),
            &Axes { title: "Round trips of 64 bytes", x: "nines: 1 is 90 %, 2 is 99 %, 3 is 99.9 %", y: "us (log10)" },
        )
    }

    fn throughput(&self) -> Vec<Line> {
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
        let mut lines: Vec<Line> = ["write", "read", "send"].map(of).into();
        lines.extend(["raw_4154", "tcp_no_offload", "tcp"].map(level));
        lines.into_iter().filter(|(_, points)| points.len() > 1).collect()
    }

    fn latency(&self) -> Vec<Line> {
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
}

fn draw(path: &Path, lines: &[Line], axes: &Axes) -> anyhow::Result<()> {
    if lines.iter().all(|(_, points)| points.is_empty()) {
        return Ok(());
    }
    try_draw(path, lines, axes).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn try_draw(path: &Path, lines: &[Line], axes: &Axes) -> Result<(), Box<dyn std::error::Error>> {
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
    chart.configure_mesh().x_desc(axes.x).y_desc(axes.y).draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let series = chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        series.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}
