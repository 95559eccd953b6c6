//! Percentile curves as SVG: how long the quickest half, nine tenths, 99 %… of all messages took at most.

use super::latency::Nanoseconds;
use super::Fallible;
use hdrhistogram::Histogram;
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (1200, 640);

/// Height of the title above.
const TITLE: u32 = 70;

const COLOURS: &[RGBColor] = &[
    RGBColor(0x1f, 0x5f, 0xb4),
    RGBColor(0xd0, 0x6a, 0x1c),
    RGBColor(0x2e, 0x8b, 0x57),
    RGBColor(0x7d, 0x55, 0xa8),
    RGBColor(0xc0, 0x2d, 0x43),
    RGBColor(0x0b, 0x2c, 0x5e),
    RGBColor(0x8a, 0x8a, 0x8a),
    RGBColor(0x9c, 0xc3, 0xee),
    RGBColor(0xf6, 0xc3, 0x93),
    RGBColor(0xa5, 0xd6, 0xb7),
];

/// The horizontal axis ends at 99.999 %.
const NINES: f64 = 5.0;

/// Steps of a curve.
const STEPS: u32 = 200;

/// Writes the chart of some named histograms, and says where.
pub(crate) fn write(file: &Path, title: &str, caption: &str, rows: &[(&str, &Histogram<u64>)]) -> Fallible {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    // The borrowed errors of the backend do not outlive it.
    draw(&root, title, caption, rows).map_err(|error| format!("{}: {error}", file.display()))?;
    root.present().map_err(|error| format!("{}: {error}", file.display()))?;
    println!("percentile curves: {}", file.display());
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(
    root: &Area,
    title: &str,
    caption: &str,
    rows: &[(&str, &Histogram<u64>)],
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let (above, plot) = root.split_vertically(TITLE);
    above.draw(&Text::new(title.to_owned(), (24, 16), ("sans-serif", 24).into_font()))?;
    above.draw(&Text::new(caption.to_owned(), (24, 48), ("sans-serif", 15).into_font()))?;
    let least = rows.iter().map(|(_, all)| all.min()).min().unwrap_or(1).max(1) as f64;
    let most = rows.iter().map(|(_, all)| all.max()).max().unwrap_or(10) as f64;
    let mut chart = ChartBuilder::on(&plot)
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..NINES, (least * 0.8..most * 1.2).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(NINES as usize + 1)
        .x_label_formatter(&|&nines| percentile(nines))
        .x_desc("percentile")
        .y_label_formatter(&|&ns| Nanoseconds(ns).to_string())
        .y_desc("at most (logarithmic)")
        .label_style(("sans-serif", 15))
        .draw()?;
    for ((name, all), colour) in rows.iter().zip(COLOURS.iter().cycle()) {
        let points = (0..=STEPS).map(|step| NINES * f64::from(step) / f64::from(STEPS));
        let curve = points.map(|nines| (nines, all.value_at_quantile(quantile(nines)).max(1) as f64));
        chart
            .draw_series(LineSeries::new(curve, colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.9))
        .label_font(("sans-serif", 15))
        .draw()?;
    Ok(())
}

/// 1 is 90 %, 2 is 99 %, 3 is 99.9 %…
fn quantile(nines: f64) -> f64 {
    1.0 - 10_f64.powf(-nines)
}

fn percentile(nines: f64) -> String {
    let decimals = (nines.round() as usize).saturating_sub(2);
    format!("{:.decimals$} %", quantile(nines) * 100.0)
}
