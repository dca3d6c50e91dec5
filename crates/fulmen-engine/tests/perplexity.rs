//! Perplexity and per-token logits match the plain f64 implementation.

mod tiny;

use fulmen_core::DType;
use fulmen_engine::{PerplexityOptions, SessionOptions};
use tiny::{SHAPES, Tiny, reference};

fn options(chunk: u32) -> SessionOptions {
    SessionOptions { context: 48, cache: DType::F32, chunk, ..SessionOptions::default() }
}

fn tokens(n: usize, vocabulary: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(17);
    (0..n).map(|_| random.u32(..vocabulary as u32)).collect()
}

fn nll(row: &[f64], token: u32) -> f64 {
    let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
    sum.ln() - row[token as usize]
}

#[test]
fn every_row_is_that_of_the_plain_implementation() {
    for shape in SHAPES {
        let tiny = Tiny::new(shape, 3);
        let text = tokens(23, shape.vocabulary);
        let expected = reference::logits(&tiny, &text);
        for (chunk, before, first) in [(512, 0, 0), (512, 0, 9), (4, 0, 9), (5, 7, 3), (1, 20, 0), (7, 0, 23)]
        {
            let mut session = tiny.load(options(chunk)).unwrap().session().unwrap();
            session.feed(0, &text[..before]).unwrap();
            let mut at = before + first;
            let each = session.logits_of_each(0, &text[before..], first, |place, rows| {
                assert_eq!(place + before, at, "rows come in order");
                for row in rows.chunks_exact(shape.vocabulary) {
                    let error: f64 =
                        row.iter().zip(&expected[at]).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
                    let norm: f64 = expected[at].iter().map(|b| b * b).sum();
                    assert!(error / norm < 1e-9, "{} row {at}: {:e}", shape.arch, error / norm);
                    at += 1;
                }
            });
            each.unwrap();
            assert_eq!(at, text.len().max(before + first));
            assert_eq!(session.tokens(0).unwrap(), text);
            // The sequence can be continued.
            let next = session.logits(0, &[1]).unwrap();
            let whole = reference::logits(&tiny, &[&text[..], &[1]].concat());
            let error: f64 = next.iter().zip(&whole[23]).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
            assert!(error < 1e-6, "{error:e}");
        }
    }
}

#[test]
fn a_batch_gives_the_rows_of_the_plain_implementation() {
    let check = |got: &[f32], expected: &[f64], what: &str| {
        let error: f64 = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
        let norm: f64 = expected.iter().map(|b| b * b).sum();
        assert!(error / norm < 1e-9, "{what}: {:e}", error / norm);
    };
    for shape in SHAPES {
        let tiny = Tiny::new(shape, 3);
        let texts: Vec<Vec<u32>> =
            [20, 9, 14].iter().map(|&n| tokens(n + 4, shape.vocabulary)[..n].to_vec()).collect();
        let expected: Vec<_> = texts.iter().map(|text| reference::logits(&tiny, text)).collect();
        let model = tiny.load(options(7)).unwrap();
        let mut session = model.session_with(SessionOptions { sequences: 3, ..options(7) }).unwrap();
        // Sequences of different lengths, one of them empty; the order of the rows is another.
        session.feed(0, &texts[0][..15]).unwrap();
        session.feed(2, &texts[2][..3]).unwrap();
        let mut next = [15, 0, 3];
        for batch in [&[2, 0, 1][..], &[1], &[0, 2], &[1, 0]] {
            let rows: Vec<(u32, u32)> = batch.iter().map(|&s| (s as u32, texts[s][next[s]])).collect();
            let got = session.logits_of_batch(&rows).unwrap();
            assert_eq!(got.len(), batch.len() * shape.vocabulary);
            for (row, &s) in got.chunks_exact(shape.vocabulary).zip(batch) {
                check(row, &expected[s][next[s]], &format!("{} sequence {s}", shape.arch));
                next[s] += 1;
            }
        }
        // What is wrong changes nothing.
        let refused = |rows: &[(u32, u32)], words: &str, session: &mut fulmen_engine::Session| {
            let before: Vec<_> = (0..3).map(|s| session.tokens(s).unwrap().to_vec()).collect();
            let error = session.logits_of_batch(rows).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!((0..3).all(|s| session.tokens(s).unwrap() == before[s as usize]));
        };
        refused(&[(0, 1), (0, 1)], "was passed twice", &mut session);
        refused(&[(3, 1)], "does not exist", &mut session);
        refused(&[(0, 1), (1, 5000)], "outside the vocabulary", &mut session);
        assert!(session.logits_of_batch(&[]).unwrap().is_empty());
        // A token that was drawn is fed before.
        let drawn = session.draw(1, &[texts[1][next[1]]]).unwrap();
        let text = [&texts[1][..=next[1]], &[drawn, 7]].concat();
        let got = session.logits_of_batch(&[(1, 7)]).unwrap();
        check(&got, &reference::logits(&tiny, &text)[text.len() - 1], shape.arch);
        // A full context is refused.
        session.feed(2, &vec![1; 48 - session.tokens(2).unwrap().len()]).unwrap();
        refused(&[(0, 1), (2, 1)], "context", &mut session);
    }
}

#[test]
fn perplexity_is_that_of_a_direct_computation() {
    let shape = SHAPES[0];
    let tiny = Tiny::new(shape, 5);
    let text = tokens(110, shape.vocabulary);
    let model = tiny.load(options(16)).unwrap();
    let mut session = model.session().unwrap();
    for (stride, begin) in [(None, None), (None, Some(2)), (Some(10), None), (Some(47), Some(0))] {
        let window = 48;
        // Windows by hand: the second half of each of three windows, or everything new.
        let places: Vec<(usize, usize)> = match stride {
            None => vec![(0, 25), (48, 73), (96, usize::MAX)],
            Some(stride) => (0..110)
                .step_by(stride)
                .map(|at| (at, if at == 0 { 1 } else { at + window - stride }))
                .collect(),
        };
        let mut scores = Vec::new();
        for (at, first) in places {
            let mut part = text[at..text.len().min(at + window)].to_vec();
            part[0] = begin.unwrap_or(part[0]);
            let rows = reference::logits(&tiny, &part);
            scores.extend(
                (first.min(at + part.len())..at + part.len()).map(|t| nll(&rows[t - at - 1], part[t - at])),
            );
        }
        let options = PerplexityOptions { window, stride, begin, threads: 2 };
        let mut told = 0;
        let got = session.perplexity(&text, &options, |known, total| {
            assert!(known.run <= total);
            told += 1;
        });
        let got = got.unwrap();
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        assert_eq!(got.scored, scores.len(), "{stride:?}");
        assert!((got.mean_nll() - mean).abs() < 1e-5, "{stride:?}: {} instead of {mean}", got.mean_nll());
        assert!((got.value() - mean.exp()).abs() < 1e-3 * mean.exp());
        let variance = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>() / scores.len() as f64;
        assert!((got.error() - (variance / (scores.len() - 1) as f64).sqrt()).abs() < 1e-5);
        assert!(told > 1 && got.rate() > 0.0);
    }
}

#[test]
fn what_makes_no_windows_is_refused() {
    let tiny = Tiny::new(SHAPES[0], 5);
    let mut session = tiny.load(options(16)).unwrap().session().unwrap();
    let mut refused = |tokens: &[u32], window, stride, words: &str| {
        let options = PerplexityOptions { window, stride, begin: None, threads: 1 };
        let error = session.perplexity(tokens, &options, |_, _| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&[1; 40], 49, None, "the perplexity window must be 2 to 48 tokens, the context, is 49");
    refused(&[1; 40], 1, None, "is 1");
    refused(&[1; 40], 8, Some(0), "the perplexity stride must be 1 to 7, is 0");
    refused(&[1; 40], 8, Some(8), "is 8");
    refused(&[1], 8, None, "the number of tokens in the text must be 3 or more, is 1");
    refused(&[1, 2], 8, None, "3 or more, is 2");
    refused(&[], 8, Some(2), "2 or more, is 0");
    refused(&[1, 1, 1, 500], 8, None, "outside the vocabulary");
}
