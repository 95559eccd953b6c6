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
type Drawn<T = ()> = Result<T, Box<dyn Error>>;

/// One bar of each group: its name and colour.
pub type Bar<'a> = (&'a str, [u8; 3]);

/// A group's name, and its bars' times in nanoseconds; a value that could not be measured has no
/// bar.
pub type Group<'a> = (&'a str, Vec<Option<f64>>);

/// Draws groups of bars, and prints the file's name.
pub fn bars(file: &Path, title: &str, caption: &str, bars: &[Bar], groups: &[Group]) -> Fallible {
    write(file, title, caption, |area| {
        let (plot, legend) = area.split_vertically(SIZE.1 - TITLE - LEGEND);
        let most = groups
            .iter()
            .flat_map(|(_, times)| times)
            .flatten()
            .copied()
            .fold(1e3, f64::max);
        let top = 10_f64.powf(most.log10().ceil());
        let mut chart = ChartBuilder::on(&plot)
            .margin_left(16)
            .margin_right(24)
            .margin_top(8)
            .x_label_area_size(34)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..groups.len() as f64, (1.0..top).log_scale())?;
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
                let left = group as f64 + GAP / 2.0 + place as f64 * width;
                let bar = time.map(|time| {
                    Rectangle::new([(left, 1.0), (left + width * 0.9, time)], fill(colour))
                });
                chart.draw_series(bar)?;
            }
            let style = ("sans-serif", 17)
                .into_font()
                .color(&BLACK)
                .pos(Pos::new(HPos::Center, VPos::Top));
            let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 1.0));
            let (_, base) = plot.get_base_pixel();
            plot.draw(&Text::new(*name, (x, y - base + 10), style))?;
        }
        draw_legend(&legend, bars)
    })
}

fn fill(&[red, green, blue]: &[u8; 3]) -> ShapeStyle {
    RGBColor(red, green, blue).filled()
}

/// Column by column.
fn draw_legend(area: &Area, bars: &[Bar]) -> Drawn {
    const ROWS: usize = 4;
    for (index, (name, colour)) in bars.iter().enumerate() {
        let (x, y) = (
            100 + 360 * (index / ROWS) as i32,
            2 + 22 * (index % ROWS) as i32,
        );
        area.draw(&Rectangle::new([(x, y), (x + 14, y + 14)], fill(colour)))?;
        area.draw(&Text::new(*name, (x + 22, y), ("sans-serif", 15)))?;
    }
    Ok(())
}

fn write(file: &Path, title: &str, caption: &str, draw: impl FnOnce(&Area) -> Drawn) -> Fallible {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let drawn = || -> Drawn {
        root.fill(&WHITE)?;
        let (above, plot) = root.split_vertically(TITLE);
        above.draw(&Text::new(title.to_owned(), (24, 16), ("sans-serif", 24)))?;
        above.draw(&Text::new(caption.to_owned(), (24, 48), ("sans-serif", 15)))?;
        draw(&plot)?;
        Ok(root.present()?)
    };
    drawn().map_err(|error| format!("{}: {error}", file.display()))?;
    println!("chart: {}", file.display());
    Ok(())
}
