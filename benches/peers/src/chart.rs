//! The chart of what allocating and dropping a message costs, as SVG.

use crate::contenders::names::*;
use crate::report::{Nanoseconds, Sized};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

const SIZE: (u32, u32) = (1200, 640);

/// Heights of the title above and of the legend below.
const TITLE: u32 = 70;
const LEGEND: u32 = 96;

/// Of the room between two groups, how much is left empty.
const GAP: f64 = 0.16;

/// Bars of a group, from left to right. One colour per backend: strong behind zenoh's provider, pale when bare.
const BARS: &[(&str, RGBColor)] = &[
    (ZENOH_OURS, RGBColor(0x1f, 0x5f, 0xb4)),
    (ZENOH_TALC, RGBColor(0xd0, 0x6a, 0x1c)),
    (ZENOH_BUDDY, RGBColor(0x2e, 0x8b, 0x57)),
    (ZENOH_HEAP, RGBColor(0x7d, 0x55, 0xa8)),
    (BARE_OURS, RGBColor(0x9c, 0xc3, 0xee)),
    (BARE_TALC, RGBColor(0xf6, 0xc3, 0x93)),
    (BARE_BUDDY, RGBColor(0xa5, 0xd6, 0xb7)),
    (BARE_HEAP, RGBColor(0xcf, 0xbb, 0xe6)),
    (ICEORYX, RGBColor(0xc0, 0x2d, 0x43)),
    (POOL, RGBColor(0x0b, 0x2c, 0x5e)),
    (MALLOC, RGBColor(0x8a, 0x8a, 0x8a)),
];

/// Writes the chart. What could not be measured has no bar.
pub(crate) fn write(file: &Path, sizes: &[Sized], caption: &str) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, rest) = root.split_vertically(TITLE);
    let (plot, legend) = rest.split_vertically(SIZE.1 - TITLE - LEGEND);
    draw_title(&title, caption)?;
    draw_plot(&plot, sizes)?;
    draw_legend(&legend)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw_title(area: &Area, caption: &str) -> Result<(), Box<dyn Error>> {
    let head = ("sans-serif", 24).into_font().color(&BLACK);
    let small = ("sans-serif", 15).into_font().color(&RGBColor(0x55, 0x55, 0x55));
    area.draw(&Text::new("Allocating and dropping one message, by its length", (24, 16), head))?;
    area.draw(&Text::new(caption.to_owned(), (24, 48), small))?;
    Ok(())
}

fn draw_plot(area: &Area, sizes: &[Sized]) -> Result<(), Box<dyn Error>> {
    let medians = sizes.iter().flat_map(|sized| &sized.rows).filter_map(|row| row.spread.as_ref().ok());
    let most = medians.map(|spread| spread.median).fold(1e3, f64::max);
    let top = 10_f64.powf(most.log10().ceil());
    let mut chart = ChartBuilder::on(area)
        .margin_left(16)
        .margin_right(24)
        .margin_top(8)
        .x_label_area_size(34)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..sizes.len() as f64, (1.0..top).log_scale())?;
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
    let width = (1.0 - GAP) / BARS.len() as f64;
    for (group, sized) in sizes.iter().enumerate() {
        for (place, (name, colour)) in BARS.iter().enumerate() {
            let row = sized.rows.iter().find(|row| row.name == *name);
            if let Some(Ok(spread)) = row.map(|row| row.spread.as_ref()) {
                let left = group as f64 + GAP / 2.0 + place as f64 * width;
                let corners = [(left, 1.0), (left + width * 0.9, spread.median)];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
            }
        }
        let style = ("sans-serif", 17).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
        let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 1.0));
        let (_, base) = area.get_base_pixel();
        area.draw(&Text::new(sized.name, (x, y - base + 10), style))?;
    }
    Ok(())
}

/// Column by column: behind zenoh's provider, bare, and the others.
fn draw_legend(area: &Area) -> Result<(), Box<dyn Error>> {
    const ROWS: usize = 4;
    let style = ("sans-serif", 15).into_font().color(&BLACK);
    for (index, (name, colour)) in BARS.iter().enumerate() {
        let (x, y) = (100 + 360 * (index / ROWS) as i32, 2 + 22 * (index % ROWS) as i32);
        area.draw(&Rectangle::new([(x, y), (x + 14, y + 14)], colour.filled()))?;
        area.draw(&Text::new(*name, (x + 22, y), style.clone()))?;
    }
    Ok(())
}
