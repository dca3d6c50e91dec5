//! Perplexity: how well a model predicts a text.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fulmen_core::clock::Instant;
use fulmen_model::ModelError;

use super::session::Session;

/// How a text is divided into windows, each of which is scored independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Tokens per window.
    pub window: usize,
    /// `None`: windows do not overlap, and the first half of each is context that is not scored, so half of
    /// the text is scored, each token with at least half a window of context. `Some(n)`: a window starts
    /// every `n` tokens and scores only what no earlier window has scored, so everything but the first token
    /// is scored.
    pub stride: Option<usize>,
    /// Replaces the first token of each window (usually with BOS).
    pub begin: Option<u32>,
    /// Threads that compute log-probabilities.
    pub threads: usize,
}

/// How well a model predicts a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Tokens scored.
    pub scored: usize,
    /// Tokens run.
    pub run: usize,
    /// The sum of −ln p over the tokens scored.
    pub nll: f64,
    /// The sum of (ln p)² over the tokens scored.
    pub squares: f64,
    /// Total time.
    pub time: Duration,
}

impl Perplexity {
    /// The mean of −ln p.
    pub fn mean_nll(&self) -> f64 {
        self.nll / self.scored.max(1) as f64
    }

    /// The standard error of that mean, as if tokens were drawn independently.
    pub fn error(&self) -> f64 {
        let n = self.scored.max(2) as f64;
        let variance = (self.squares / n - self.mean_nll().powi(2)).max(0.0);
        (variance / (n - 1.0)).sqrt()
    }

    /// The perplexity: e to the mean of −ln p.
    pub fn value(&self) -> f64 {
        self.mean_nll().exp()
    }

    /// Tokens run per second.
    pub fn rate(&self) -> f64 {
        self.run as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// A window's first token, its end, and the first token scored in it.
#[derive(Debug, PartialEq, Eq)]
struct Window {
    begin: usize,
    end: usize,
    first: usize,
}

fn windows(tokens: usize, options: &PerplexityOptions) -> Vec<Window> {
    let window = options.window.min(tokens);
    match options.stride {
        None => {
            // As in llama.cpp, the first token scored follows one that has half a window before it.
            let of = |begin: usize| Window {
                begin,
                end: tokens.min(begin + window),
                first: begin + window / 2 + 1,
            };
            (0..tokens).step_by(window.max(1)).map(of).filter(|window| window.first < window.end).collect()
        }
        Some(stride) => {
            let mut list: Vec<Window> = Vec::new();
            for begin in (0..tokens).step_by(stride.max(1)) {
                let first = list.last().map_or(1, |before| before.end);
                if first < tokens {
                    list.push(Window { begin, end: tokens.min(begin + window), first });
                }
            }
            list
        }
    }
}

impl Session {
    /// Scores a text in sequence 0, window by window. After each window, `progress` gets the result so far
    /// and the total number of tokens to run.
    pub fn perplexity(
        &mut self,
        tokens: &[u32],
        options: &PerplexityOptions,
        mut progress: impl FnMut(&Perplexity, usize),
    ) -> Result<Perplexity, ModelError> {
        let refused = |what, expected: String, found: usize| {
            Err(ModelError::Option { what, expected, found: found.to_string() })
        };
        let &PerplexityOptions { window, stride, .. } = options;
        if window < 2 || window > self.context() {
            let expected = format!("2 to {} tokens, the context", self.context());
            return refused("the perplexity window", expected, window);
        }
        if let Some(stride) = stride.filter(|stride| !(1..window).contains(stride)) {
            return refused("the perplexity stride", format!("1 to {}", window - 1), stride);
        }
        let vocabulary = self.shared.config.vocabulary;
        if let Some(at) = tokens.iter().position(|&token| token >= vocabulary) {
            return Err(ModelError::Token { token: tokens[at], at, vocabulary });
        }
        let windows = windows(tokens.len(), options);
        if windows.is_empty() {
            // One token to score and at least one before it; without a stride, that one needs context, too.
            let least = if stride.is_some() { "2 or more" } else { "3 or more" };
            return refused("the number of tokens in the text", least.to_owned(), tokens.len());
        }
        let total = windows.iter().map(|window| window.end - window.begin).sum();
        let start = Instant::now();
        let mut known = Perplexity::default();
        for Window { begin, end, first } in windows {
            let mut text = tokens[begin..end].to_vec();
            if let Some(token) = options.begin {
                text[0] = token;
            }
            self.truncate(0, 0)?;
            // Logits after a token predict the next one; nothing follows the last token, so it is not fed.
            let fed = text.len() - 1;
            let mut scores = Vec::new();
            self.logits_of_each(0, &text[..fed], first - begin - 1, |at, rows| {
                let next = &text[at + 1..];
                scores.extend(nll(rows, vocabulary as usize, next, options.threads));
            })?;
            if let Some(at) = scores.iter().position(|score| score.is_nan()) {
                let position = first - begin - 1 + at;
                return Err(ModelError::LogitsNotFinite { token: text[position], position, sequence: 0 });
            }
            known.scored += scores.len();
            known.run += fed;
            known.nll += scores.iter().sum::<f64>();
            known.squares += scores.iter().map(|score| score * score).sum::<f64>();
            known.time = start.elapsed();
            progress(&known, total);
        }
        self.truncate(0, 0)?;
        Ok(known)
    }
}

/// −ln p of the next token, for each row of logits.
fn nll(rows: &[f32], vocabulary: usize, next: &[u32], threads: usize) -> Vec<f64> {
    let pairs: Vec<(&[f32], u32)> = rows.chunks_exact(vocabulary).zip(next.iter().copied()).collect();
    let scores: Vec<AtomicU64> = pairs.iter().map(|_| AtomicU64::new(0)).collect();
    let taken = AtomicUsize::new(0);
    let work = || {
        while let Some((at, (row, token))) =
            Some(taken.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, pairs.get(at)?)))
        {
            scores[at].store(row_nll(row, *token).to_bits(), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(pairs.len()) {
            // If a thread cannot be started, the others do its work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    scores.into_iter().map(|score| f64::from_bits(score.into_inner())).collect()
}

/// −ln softmax(row)[token]. `token` must be within the vocabulary.
fn row_nll(row: &[f32], token: u32) -> f64 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| (f64::from(logit) - f64::from(largest)).exp()).sum();
    f64::from(largest) + sum.ln() - f64::from(row[token as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(window: usize, stride: Option<usize>) -> PerplexityOptions {
        PerplexityOptions { window, stride, begin: None, threads: 1 }
    }

    fn scored(tokens: usize, window: usize, stride: Option<usize>) -> Vec<usize> {
        windows(tokens, &options(window, stride)).iter().flat_map(|w| w.first..w.end).collect()
    }

    #[test]
    fn the_second_half_of_each_window_is_scored() {
        assert_eq!(scored(20, 8, None), [5, 6, 7, 13, 14, 15]);
        // The last window is scored if it is long enough.
        assert_eq!(scored(23, 8, None), [5, 6, 7, 13, 14, 15, 21, 22]);
        assert_eq!(scored(5, 8, None), [3, 4], "a short text is one window");
        assert!(scored(2, 8, None).is_empty());
        assert_eq!(scored(3, 8, None), [2]);
    }

    #[test]
    fn with_a_stride_every_token_is_scored_once() {
        for (tokens, window, stride) in
            [(20, 8, 4), (21, 8, 1), (23, 8, 7), (5, 8, 3), (2, 8, 4), (64, 16, 5)]
        {
            let all: Vec<usize> = (1..tokens).collect();
            assert_eq!(scored(tokens, window, Some(stride)), all, "{tokens} {window} {stride}");
            for w in windows(tokens, &options(window, Some(stride))) {
                assert!(w.end - w.begin <= window && w.first > w.begin);
                assert!(w.begin == 0 || w.first - w.begin >= window - stride, "{w:?}");
            }
        }
        assert!(scored(1, 8, Some(4)).is_empty());
    }

    #[test]
    fn the_sum_of_probabilities_is_exact() {
        let row = [1e4f32, 1e4 - 1.0, -1e4, f32::NEG_INFINITY];
        let expected = (1.0 + (-1.0f64).exp()).ln();
        assert!((row_nll(&row, 0) - expected).abs() < 1e-12);
        assert!((row_nll(&row, 1) - expected - 1.0).abs() < 1e-12);
        assert_eq!(row_nll(&row, 3), f64::INFINITY);
    }
}
