//! Charts as SVG: groups of bars.

use crate::units::Nanoseconds;
use crate::Fallible;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

const SIZE: (u32, u32) = (1200, 640);

/// Heights of the title above and of the bars' legend below.
const TITLE: u32 = 70;
const LEGEND: u32 = 96;

/// The share of the space between two groups of bars that is left empty.
const GAP: f64 = 0.16;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
// The borrowed errors of the backend do not outlive it.
type Drawn = Result<(), Box<dyn Error>>;

/// One bar of each group: its name and colour.
pub type Bar<'a> = (&'a str, [u8; 3]);

/// A group's name, and its bars' times in nanoseconds; a value that could not be measured has no
/// bar.
pub type Group<'a> = (&'a str, Vec<Option<f64>>);

/// Draws groups of bars, and prints the file's name.
pub fn bars(file: &Path, title: &str, caption: &str, bars: &[Bar], groups: &[Group]) -> Fallible {
    let drawn = draw(file, title, caption, bars, groups);
    drawn.map_err(|error| format!("{}: {error}", file.display()))?;
    println!("chart: {}", file.display());
    Ok(())
}

fn draw(file: &Path, title: &str, caption: &str, bars: &[Bar], groups: &[Group]) -> Drawn {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, rest) = root.split_vertically(TITLE);
    above.draw(&Text::new(title.to_owned(), (24, 16), ("sans-serif", 24)))?;
    above.draw(&Text::new(caption.to_owned(), (24, 48), ("sans-serif", 15)))?;

    let (plot, legend) = rest.split_vertically(SIZE.1 - TITLE - LEGEND);
    draw_groups(&plot, bars, groups)?;
    draw_legend(&legend, bars)?;
    Ok(root.present()?)
}

fn draw_groups(plot: &Area, bars: &[Bar], groups: &[Group]) -> Drawn {
    let mut chart = ChartBuilder::on(plot)
        .margin_left(16)
        .margin_right(24)
        .margin_top(8)
        .x_label_area_size(34)
        .y_label_area_size(76)
        .build_cartesian_2d(
            0.0..groups.len() as f64,
            (1.0..power_of_ten_above(groups)).log_scale(),
        )?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_label_formatter(&|ns| Nanoseconds(*ns).to_string().replace(".0 ", " "))
        .y_label_style(("sans-serif", 15))
        .y_desc("per message (logarithmic)")
        .axis_desc_style(("sans-serif", 15))
        .bold_line_style(RGBColor(0xcc, 0xcc, 0xcc))
        .light_line_style(RGBColor(0xf0, 0xf0, 0xf0))
        .draw()?;

    let width = (1.0 - GAP) / bars.len() as f64;
    for (group, (name, times)) in groups.iter().enumerate() {
        for (place, (time, (_, colour))) in times.iter().zip(bars).enumerate() {
            let Some(time) = time else {
                continue;
            };
            let left = group as f64 + GAP / 2.0 + place as f64 * width;
            let right = left + width * 0.9;
            let bar = Rectangle::new([(left, 1.0), (right, *time)], fill(colour));
            chart.draw_series([bar])?;
        }

        let style = ("sans-serif", 17)
            .into_font()
            .color(&BLACK)
            .pos(Pos::new(HPos::Center, VPos::Top));
        let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 1.0));
        let (_, base) = plot.get_base_pixel();
        plot.draw(&Text::new(*name, (x, y - base + 10), style))?;
    }
    Ok(())
}

/// Returns the first power of ten, from a microsecond, that is not below any time.
fn power_of_ten_above(groups: &[Group]) -> f64 {
    let mut longest = 1e3;
    for (_, times) in groups {
        for time in times.iter().flatten() {
            longest = f64::max(longest, *time);
        }
    }
    10_f64.powf(longest.log10().ceil())
}

fn fill(&[red, green, blue]: &[u8; 3]) -> ShapeStyle {
    RGBColor(red, green, blue).filled()
}

/// Column by column.
fn draw_legend(area: &Area, bars: &[Bar]) -> Drawn {
    const ROWS: usize = 4;
    for (index, (name, colour)) in bars.iter().enumerate() {
        let x = 100 + 360 * (index / ROWS) as i32;
        let y = 2 + 22 * (index % ROWS) as i32;
        area.draw(&Rectangle::new([(x, y), (x + 14, y + 14)], fill(colour)))?;
        area.draw(&Text::new(*name, (x + 22, y), ("sans-serif", 15)))?;
    }
    Ok(())
}
