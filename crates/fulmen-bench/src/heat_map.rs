//! A heat map of decode as SVG: one strip of cells for each axis, colored by the share of the bound.

use std::fmt::Write as _;

use crate::model::{Axis, MatrixCell, MatrixReport};
use crate::svg::escaped;

const WIDTH: usize = 1080;
const LEFT: usize = 110;
const CELL_HEIGHT: usize = 58;
const STRIP: usize = 92;
const TOP: usize = 70;

/// Draws the cells of a report as SVG.
pub fn draw(report: &MatrixReport) -> String {
    let strips: Vec<(Axis, Vec<&MatrixCell>)> = Axis::ALL
        .iter()
        .map(|&axis| (axis, report.cells.iter().filter(|cell| cell.axis == axis).collect::<Vec<_>>()))
        .filter(|(_, cells)| !cells.is_empty())
        .collect();
    let height = TOP + STRIP * strips.len() + 40;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui,sans-serif\" font-size=\"12\">\n\
         <style>.page{{fill:#fff}}.text{{fill:#24292f}}.cliff{{stroke:#24292f;stroke-width:3}}\
         @media(prefers-color-scheme:dark){{.page{{fill:#0d1117}}.text{{fill:#e6edf3}}\
         .cliff{{stroke:#e6edf3}}}}</style>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"text\" x=\"10\" y=\"26\" font-size=\"16\">Decode of {} on {}</text>\n\
         <text class=\"text\" x=\"10\" y=\"46\">µs per step and share of the bound; framed: slower than a \
         neighbor explains</text>\n",
        escaped(&report.shape),
        escaped(&report.name)
    );
    for (at, (axis, cells)) in strips.iter().enumerate() {
        strip(&mut svg, report, TOP + at * STRIP, *axis, cells);
    }
    legend(&mut svg, height - 24);
    svg + "</svg>\n"
}

fn strip(svg: &mut String, report: &MatrixReport, top: usize, axis: Axis, cells: &[&MatrixCell]) {
    let width = (WIDTH - LEFT - 10) / cells.len().max(4);
    let middle = top + 18 + CELL_HEIGHT / 2 + 4;
    // Writing to a string cannot fail.
    let _ = writeln!(svg, "<text class=\"text\" x=\"10\" y=\"{middle}\">{}</text>", axis.title());
    for (at, cell) in cells.iter().enumerate() {
        let (x, value) = (LEFT + at * width, escaped(&cell.value()));
        let center = x + width / 2;
        let cliff = report.cliffs.iter().find(|cliff| cliff.axis == axis && cliff.cell == cell.value());
        let class = if cliff.is_some() { " class=\"cliff\"" } else { "" };
        let (first, second) = match (&cell.error, cell.share_of_bound) {
            (Some(_), _) => ("–".to_owned(), String::new()),
            (None, share) => (
                format!("{:.0}", cell.step_us),
                share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share)),
            ),
        };
        let title = match (&cell.error, cliff) {
            (Some(error), _) => escaped(error),
            (None, Some(cliff)) => {
                format!("{:.0} % slower than {}", 100.0 * cliff.slower_by, escaped(&cliff.neighbor))
            }
            (None, None) => format!("{:.1} tok/s", cell.tokens_per_second),
        };
        let _ = writeln!(
            svg,
            "<text class=\"text\" x=\"{center}\" y=\"{}\" text-anchor=\"middle\">{value}</text>\
             <rect{class} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{CELL_HEIGHT}\" rx=\"4\" \
             fill=\"{}\"><title>{title}</title></rect>\
             <text x=\"{center}\" y=\"{}\" text-anchor=\"middle\" fill=\"#111\">{first}</text>\
             <text x=\"{center}\" y=\"{}\" text-anchor=\"middle\" fill=\"#111\">{second}</text>",
            top + 12,
            x + 2,
            top + 18,
            width.saturating_sub(4),
            color(cell.error.is_none().then_some(cell.share_of_bound).flatten()),
            top + 42,
            top + 60,
        );
    }
}

/// From red over yellow to green; gray without a share.
fn color(share: Option<f64>) -> String {
    let Some(share) = share else { return "#c9d1d9".to_owned() };
    format!("hsl({:.0} 70% 68%)", 130.0 * (share / 0.8).clamp(0.0, 1.0))
}

fn legend(svg: &mut String, y: usize) {
    for step in 0..=8 {
        let share = f64::from(step) / 10.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{}\" y=\"{y}\" width=\"40\" height=\"14\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#111\">{:.0} %</text>",
            LEFT + step as usize * 40,
            color(Some(share)),
            LEFT + step as usize * 40 + 20,
            y + 11,
            100.0 * share
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::find_cliffs;

    #[test]
    fn every_cell_is_drawn_and_cliffs_are_framed() {
        let cell = |axis, rows, step_us: f64, error: Option<&str>| MatrixCell {
            axis,
            rows,
            recipe: "q4_k_m".to_owned(),
            kv: "<f16>".to_owned(),
            depth: 1000,
            target: None,
            read_bytes: 1,
            tokens_per_second: f64::from(rows) / step_us,
            step_us,
            bound_us: Some(1.0),
            share_of_bound: error.is_none().then_some(0.4),
            error: error.map(str::to_owned),
        };
        let cells = vec![
            cell(Axis::Rows, 1, 10.0, None),
            cell(Axis::Rows, 2, 30.0, None),
            cell(Axis::Cache, 1, 10.0, Some("no room for <this>")),
        ];
        let cliffs = find_cliffs(&cells);
        let report = MatrixReport {
            device: "cuda:0".to_owned(),
            name: "a & b".to_owned(),
            shape: "qwen3-4b".to_owned(),
            memory_bytes_per_second: None,
            cells,
            cliffs,
        };
        let svg = draw(&report);
        assert_eq!(svg.matches("rx=\"4\"").count(), 3);
        assert_eq!(svg.matches("class=\"cliff\"").count(), 1);
        assert!(
            svg.contains("a &amp; b")
                && svg.contains("no room for &lt;this&gt;")
                && svg.contains("&lt;f16&gt;")
        );
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
