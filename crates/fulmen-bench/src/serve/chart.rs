//! Latency against throughput as SVG.

use std::fmt::Write as _;

use super::{ServeReport, ServeTimes};
use crate::model::Latency;
use crate::svg::escaped;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 440.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 60.0;
/// Left edge and width of a panel.
const PANELS: [(f64, f64); 2] = [(70.0, 390.0), (550.0, 390.0)];
const COLORS: [(&str, &str); 3] = [("p50", "#1b6ca8"), ("p95", "#b8860b"), ("p99", "#c8553d")];

/// What a panel shows of a test.
type Figure = fn(&ServeTimes) -> Latency;

/// Draws time to first token and inter-token latency over tokens per second, a point for each load.
pub fn draw(report: &ServeReport) -> String {
    let mut tests: Vec<&ServeTimes> = report.tests.iter().collect();
    tests.sort_by(|a, b| a.output_tokens_per_second.total_cmp(&b.output_tokens_per_second));
    let device = report.device.as_ref().map_or(String::new(), |device| format!(" on {device}"));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"70\" y=\"26\" font-size=\"16\">{}</text>\n",
        escaped(&format!("{}{device}: latency against throughput", report.model))
    );
    let panels: [(&str, Figure); 2] = [
        ("time to first token, ms", |test| test.time_to_first_token_ms),
        ("inter-token latency, ms", |test| test.inter_token_ms),
    ];
    for ((left, width), (title, latency)) in PANELS.into_iter().zip(panels) {
        panel(&mut svg, (left, width), title, &tests, latency);
    }
    svg + "</svg>\n"
}

/// A round number that is at least `value`.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|&round| round >= value).unwrap_or(10.0 * power)
}

/// A number without needless digits.
fn label(value: f64) -> String {
    match value {
        value if value >= 10.0 || value == 0.0 => format!("{value:.0}"),
        value if value >= 1.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn panel(svg: &mut String, (left, width): (f64, f64), title: &str, tests: &[&ServeTimes], latency: Figure) {
    let fastest = tests.iter().map(|test| test.output_tokens_per_second).fold(0.0, f64::max);
    let slowest = tests.iter().map(|test| latency(test).p99).fold(0.0, f64::max);
    let (most_x, most_y) = (round_up(fastest), round_up(slowest));
    let bottom = HEIGHT - BOTTOM;
    let x = |value: f64| left + value / most_x * width;
    let y = |value: f64| bottom - value / most_y * (bottom - TOP);
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        let (column, row) = (x(share * most_x), y(share * most_y));
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{column:.1}\" y1=\"{TOP}\" x2=\"{column:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{column:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <line x1=\"{left}\" y1=\"{row:.1}\" x2=\"{}\" y2=\"{row:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            bottom + 18.0,
            label(share * most_x),
            left + width,
            left - 8.0,
            row + 4.0,
            label(share * most_y)
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\">{title}</text>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">output tokens per second</text>",
        TOP - 14.0,
        left + width / 2.0,
        HEIGHT - 18.0
    );
    let values: [fn(Latency) -> f64; 3] = [|l| l.p50, |l| l.p95, |l| l.p99];
    for (number, ((name, color), value)) in COLORS.into_iter().zip(values).enumerate() {
        let points: Vec<(f64, f64)> =
            tests.iter().map(|test| (x(test.output_tokens_per_second), y(value(latency(test))))).collect();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"{color}\" text-anchor=\"end\">{name}</text>",
            line.join(" "),
            left + width - 40.0 * (2.0 - number as f64),
            TOP - 14.0
        );
        for ((px, py), test) in points.iter().zip(tests) {
            let load = match test.concurrency {
                0 => format!("{} per second", label(test.rate)),
                count => format!("{count} at once"),
            };
            let _ = writeln!(
                svg,
                "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.5\" fill=\"{color}\"><title>{load}: \
                 {:.0} tok/s, {name} {:.2} ms</title></circle>",
                test.output_tokens_per_second,
                value(latency(test))
            );
            if number == 2 {
                let _ = writeln!(
                    svg,
                    "<text x=\"{px:.1}\" y=\"{:.1}\" font-size=\"10\" text-anchor=\"middle\">{load}</text>",
                    py - 8.0
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(concurrency: u32, rate: f64, tokens: f64, ms: f64) -> ServeTimes {
        let latency = Latency { p50: ms, p95: 2.0 * ms, p99: 3.0 * ms, max: 4.0 * ms };
        ServeTimes {
            concurrency,
            input: 128.0,
            output: 128.0,
            requests: 3,
            failed: 0,
            rate,
            seconds: 1.0,
            output_tokens_per_second: tokens,
            total_tokens_per_second: 2.0 * tokens,
            time_to_first_token_ms: latency,
            inter_token_ms: latency,
            request_ms: latency,
            added_ms: None,
            cached_tokens: 0,
            pages: None,
            pages_used: None,
            preemptions: None,
            steps: None,
            rows_per_step: None,
            engine_tokens_per_second: None,
            share_of_engine: None,
        }
    }

    #[test]
    fn every_load_is_drawn_inside_its_panels() {
        let tests = vec![test(64, 0.0, 9000.0, 20.0), test(1, 0.0, 450.0, 3.0), test(0, 2.5, 300.0, 0.4)];
        let report = ServeReport {
            url: "u".to_owned(),
            model: "a<b".to_owned(),
            device: Some("gpu".to_owned()),
            tests,
        };
        let svg = draw(&report);
        assert_eq!(svg.matches("<circle").count(), 2 * 3 * 3);
        assert!(
            svg.contains("a&lt;b on gpu") && svg.contains("64 at once") && svg.contains("2.5 per second")
        );
        for part in svg.split("<circle cx=\"").skip(1) {
            let number = |text: &str| text.split('"').next().unwrap().parse::<f64>().unwrap();
            let (x, y) = (number(part), number(part.split("cy=\"").nth(1).unwrap()));
            assert!((TOP..=HEIGHT - BOTTOM).contains(&y), "{y}");
            assert!(PANELS.iter().any(|(left, width)| (*left..=left + width).contains(&x)), "{x}");
        }
        assert!(draw(&ServeReport { tests: Vec::new(), ..report }).ends_with("</svg>\n"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, round) in [(0.0, 1.0), (0.93, 1.0), (1.2, 1.5), (47.0, 50.0), (9001.0, 10_000.0)] {
            assert!((round_up(value) - round).abs() < 1e-9 * round, "{value}: {}", round_up(value));
        }
    }
}
