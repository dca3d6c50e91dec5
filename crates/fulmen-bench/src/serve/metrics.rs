//! What Fulmen's own server tells of its engine in `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;

use super::client::{Connection, Target};

/// How often the pages in use are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The engine's figures at one time, summed over models.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) pages: u32,
    pub(super) free_pages: u32,
    pub(super) steps: u64,
    pub(super) rows: u64,
    pub(super) preemptions: u64,
}

impl Figures {
    /// Reads the text format of Prometheus; `None` if it has no figures of an engine.
    pub(super) fn parse(text: &str) -> Option<Figures> {
        let sum = |name: &str| {
            let mut found = None;
            for line in text.lines().filter(|line| line.starts_with(name)) {
                let rest = &line[name.len()..];
                let value = rest.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
                if rest.starts_with(['{', ' ']) {
                    *found.get_or_insert(0.0) += value.unwrap_or(0.0);
                }
            }
            found
        };
        Some(Figures {
            pages: sum("fulmen_engine_pages")? as u32,
            free_pages: sum("fulmen_engine_free_pages")? as u32,
            steps: sum("fulmen_engine_steps_total")? as u64,
            rows: (sum("fulmen_engine_prefill_rows_total")? + sum("fulmen_engine_decode_rows_total")?) as u64,
            preemptions: sum("fulmen_engine_preemptions_total")? as u64,
        })
    }

    /// Asks the server; `None` if it is another one.
    pub(super) async fn read(target: &Arc<Target>) -> Option<Figures> {
        let mut connection = Connection::open(target).await.ok()?;
        let (status, text) = connection.ask(Method::GET, "/metrics", None).await.ok()?;
        if status == 200 { Figures::parse(&text) } else { None }
    }
}

/// Looks at the pages in use until it is ended, and returns the most.
pub(super) async fn most_pages(target: Arc<Target>, mut ended: tokio::sync::oneshot::Receiver<()>) -> u32 {
    let mut most = 0;
    loop {
        if let Some(figures) = Figures::read(&target).await {
            most = most.max(figures.pages.saturating_sub(figures.free_pages));
        }
        if tokio::time::timeout(LOOK, &mut ended).await.is_ok() {
            return most;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_summed_over_models() {
        let text = "# HELP fulmen_engine_pages KV pages.\n# TYPE fulmen_engine_pages gauge\n\
            fulmen_engine_pages{model=\"a b\"} 10\nfulmen_engine_pages{model=\"c\"} 5\n\
            fulmen_engine_free_pages{model=\"c\"} 3\nfulmen_engine_steps_total{model=\"c\"} 7\n\
            fulmen_engine_prefill_rows_total{model=\"c\"} 20\n\
            fulmen_engine_decode_rows_total{model=\"c\"} 1\n\
            fulmen_engine_preemptions_total{model=\"c\"} 2\n";
        let found = Figures::parse(text).unwrap();
        assert_eq!(found, Figures { pages: 15, free_pages: 3, steps: 7, rows: 21, preemptions: 2 });
        assert_eq!(Figures::parse("process_cpu_seconds_total 3\n"), None);
    }
}
