//! A roofline chart as SVG: FLOP/s over arithmetic intensity, under the ceilings of the device.

use std::fmt::Write as _;

use crate::Ceilings;
use crate::svg::escaped;

/// One measured computation.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its label.
    pub name: String,
    /// Arithmetic intensity: FLOP per byte.
    pub intensity: f64,
    /// GFLOP/s that were reached.
    pub gflop_s: f64,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 640.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;

/// The powers of ten around all values: the ends of a logarithmic axis.
fn decades(values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (low, high) = values
        .filter(|value| *value > 0.0 && value.is_finite())
        .fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return (0, 1);
    }
    let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    (low, high.max(low + 1))
}

struct Axes {
    x: (i32, i32),
    y: (i32, i32),
}

impl Axes {
    fn x(&self, value: f64) -> f64 {
        let share = (value.log10() - f64::from(self.x.0)) / f64::from(self.x.1 - self.x.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value.log10() - f64::from(self.y.0)) / f64::from(self.y.1 - self.y.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// Draws the points and the roofline of a device as SVG.
pub fn draw(device: &str, ceilings: &Ceilings, points: &[Point]) -> String {
    let Ceilings { read_gb_s, f32_gflop_s, .. } = *ceilings;
    // The ridge point, where the two ceilings meet, is on the chart.
    let ridge = f32_gflop_s / read_gb_s;
    let axes = Axes {
        x: decades(points.iter().map(|point| point.intensity).chain([ridge])),
        y: decades(points.iter().map(|point| point.gflop_s).chain([f32_gflop_s])),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"28\" \
         font-size=\"16\">{} — {read_gb_s:.0} GB/s, {f32_gflop_s:.0} GFLOP/s in f32</text>\n",
        escaped(device)
    );
    grid(&mut svg, &axes);
    roof(&mut svg, &axes, read_gb_s, f32_gflop_s);
    for (number, point) in points.iter().enumerate() {
        let (x, y) = (axes.x(point.intensity), axes.y(point.gflop_s));
        let name = escaped(&point.name);
        let color = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5aa8", "#b8860b"][number % 5];
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\"><title>{name}: \
             {:.0} GFLOP/s, {:.2} FLOP/byte</title></circle>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\" fill=\"{color}\">{name}</text>",
            point.gflop_s,
            point.intensity,
            x + 6.0,
            y + 3.0
        );
    }
    svg + "</svg>\n"
}

fn grid(svg: &mut String, axes: &Axes) {
    for exponent in axes.x.0..=axes.x.1 {
        let x = axes.x(10f64.powi(exponent));
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            10f64.powi(exponent)
        );
    }
    for exponent in axes.y.0..=axes.y.1 {
        let y = axes.y(10f64.powi(exponent));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            10f64.powi(exponent)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">FLOP per byte</text><text x=\"20\" y=\"{}\" \
         transform=\"rotate(-90 20 {})\" text-anchor=\"middle\">GFLOP/s</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 18.0,
        HEIGHT / 2.0,
        HEIGHT / 2.0
    );
}

/// The bandwidth ceiling up to the ridge point, and the arithmetic ceiling from there.
fn roof(svg: &mut String, axes: &Axes, read_gb_s: f64, gflop_s: f64) {
    let (first, last) = (10f64.powi(axes.x.0), 10f64.powi(axes.x.1));
    let ridge = (gflop_s / read_gb_s).clamp(first, last);
    let at = |x: f64| (axes.x(x), axes.y((x * read_gb_s).min(gflop_s).max(10f64.powi(axes.y.0))));
    let ((x0, y0), (x1, y1), (x2, y2)) = (at(first), at(ridge), at(last));
    let _ = writeln!(
        svg,
        "<polyline points=\"{x0:.1},{y0:.1} {x1:.1},{y1:.1} {x2:.1},{y2:.1}\" fill=\"none\" stroke=\"black\" \
         stroke-width=\"1.5\"/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILINGS: Ceilings =
        Ceilings { read_gb_s: 4000.0, copy_gb_s: 3900.0, f32_gflop_s: 50_000.0, by_host_clock: false };

    #[test]
    fn every_point_is_drawn_inside_the_axes() {
        let point = |name: &str, intensity, gflop_s| Point { name: name.to_owned(), intensity, gflop_s };
        let points = [
            point("low <1>", 0.25, 900.0),
            point("high", 2700.0, 44_000.0),
            point("tensor cores", 2700.0, 3e5),
        ];
        let svg = draw("a \"device\"", &CEILINGS, &points);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("low &lt;1&gt;") && svg.contains("a &quot;device&quot;"), "{svg}");
        for part in svg.split("<circle cx=\"").skip(1) {
            let number = |text: &str| text.split('"').next().unwrap().parse::<f64>().unwrap();
            let (x, y) = (number(part), number(part.split("cy=\"").nth(1).unwrap()));
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{x} {y}");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_chart_without_points_has_its_ceilings() {
        assert!(draw("device", &CEILINGS, &[]).contains("<polyline"));
    }
}
