//! Values in device memory that are out of range: an error names row and value, and the device stays usable.

use fulmen_core::sampling::{Penalties, SampleState};
use fulmen_core::{
    AdvanceCall, AttentionCall, AttentionRows, DType, DeviceMemory, EmbedCall, Heads, KernelDispatch,
    KvCache, KvSource, KvStoreCall, LogitSlots, MaskLogitsCall, NO_PAGE, PageLayout, PenalizeCall,
    SampleCall, TokenHistory, WeightArg,
};
use fulmen_cuda::CudaDispatcher;

use crate::gpu;

fn put<T: bytemuck::NoUninit>(cuda: &mut CudaDispatcher, values: &[T]) -> u64 {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let ptr = cuda.alloc(bytes.len()).unwrap();
    cuda.write(ptr, bytes).unwrap();
    ptr
}

fn get(cuda: &mut CudaDispatcher, ptr: u64, words: usize) -> Vec<u32> {
    let mut out = vec![0u32; words];
    cuda.read(ptr, bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}

#[track_caller]
fn reported(cuda: &mut CudaDispatcher, message: &str) {
    let error = cuda.synchronize().unwrap_err().to_string();
    assert_eq!(error, message);
    cuda.synchronize().expect("it is reported once");
}

#[test]
fn tokens_out_of_range_are_reported() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let (table, tokens) = (put(&mut cuda, &[1f32; 8 * 4]), put(&mut cuda, &[3u32, 8, 0]));
    let output = put(&mut cuda, &[7f32; 3 * 4]);
    let table = WeightArg { ptr: table, dtype: DType::F32, rows: 8 };
    cuda.dispatch_embed(&EmbedCall { table, part: None, tokens, output, m: 3, width: 4 }).unwrap();
    reported(&mut cuda, "the token of row 1 is 8, but there are only 8");
    // The other rows are correct, and nothing was written for this one.
    let rows = get(&mut cuda, output, 12);
    let expected = [[1f32; 4], [7.0; 4], [1.0; 4]].concat();
    assert_eq!(rows, expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
}

/// Stores and attention in decode and in prefill, in every type: each has a kernel of its own.
#[test]
fn pages_that_are_not_in_the_pool_are_reported_and_not_written() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 64 };
    for (m, dtype) in
        [(1, DType::F16), (40, DType::F16), (200, DType::F16), (1, DType::Q8_0), (3, DType::F32)]
    {
        let bytes = PageLayout::new(dtype, heads).unwrap().pool_bytes(3).unwrap();
        let (k_ptr, v_ptr) = (put(&mut cuda, &vec![0u8; bytes]), put(&mut cuda, &vec![0u8; bytes]));
        let table_ptr = put(&mut cuda, &[1u32, 3, NO_PAGE]);
        let (n_pages, n_seqs, seq_pages) = (3, 1, 3);
        let cache = KvCache { k_ptr, v_ptr, dtype, n_pages, table_ptr, n_seqs, seq_pages };
        // The last row is the first of the page that is not there.
        let positions: Vec<u32> = (0..m).map(|row| 128u32.saturating_sub(m - 1 - row)).collect();
        let positions = put(&mut cuda, &positions);
        let (rows, queries) = (vec![1f32; m as usize * 128], vec![1f32; m as usize * 256]);
        let (k, v, q) = (put(&mut cuda, &rows), put(&mut cuda, &rows), put(&mut cuda, &queries));
        let output = put(&mut cuda, &queries);
        let store = KvStoreCall { k, v, cache, positions, sequences: None, m, heads };
        cuda.dispatch_kv_store(&store).unwrap();
        reported(&mut cuda, &format!("the page of row {} is 3, but there are only 3", m - 1));
        let kv = KvSource::Cache { cache, positions, sequences: None };
        let attention = AttentionCall {
            q,
            kv,
            output,
            m,
            heads,
            rows: AttentionRows::Any,
            scores: 0.1.into(),
            layer: 0,
            batch_invariant: false,
        };
        cuda.dispatch_attention(&attention).unwrap();
        let error = cuda.synchronize().unwrap_err().to_string();
        assert!(error.starts_with("the page of row") && error.ends_with("is 3, but there are only 3"));
        // Pages 0 and 2 belong to nobody.
        let words = get(&mut cuda, k_ptr, bytes / 4);
        let page = words.len() / 3;
        assert!(words[..page].iter().chain(&words[2 * page..]).all(|&word| word == 0), "{dtype} {m}");
    }
}

#[test]
fn invalid_sampling_states_are_reported() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let logits = put(&mut cuda, &[1f32, 2.0, 3.0, 4.0]);
    let good = SampleState { temperature: 1.0, step: 5, ..SampleState::greedy() };
    for (bad, message) in [
        (
            SampleState { temperature: -1.0, ..good },
            "the temperature must be a finite number of at least 0, not -1",
        ),
        (
            SampleState { temperature: f32::INFINITY, ..good },
            "the temperature must be a finite number of at least 0, not inf",
        ),
        (SampleState { top_p: f32::NAN, ..good }, "top_p must be a number of at least 0, not NaN"),
        (SampleState { min_p: 1.5, ..good }, "min_p must be a number from 0 to 1, not 1.5"),
    ] {
        let (states, output) = (put(&mut cuda, &[good, bad]), put(&mut cuda, &[9u32; 2]));
        cuda.dispatch_sample(&SampleCall { logits, tokens: None, states, output, m: 2, n: 2 }).unwrap();
        reported(&mut cuda, &format!("the sampling state of row 1: {message}"));
        let (drawn, steps) = (get(&mut cuda, output, 2), get(&mut cuda, states, 16));
        assert!(drawn[0] < 2 && drawn[1] == 9, "{drawn:?}");
        assert_eq!((steps[6], steps[14]), (6, 5));
    }
}

#[test]
fn invalid_penalties_and_histories_are_reported() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let good = Penalties { repeat: 2.0, window: 4, ..Penalties::NONE };
    let tokens = [0u32, 1, 2, 3];
    for (penalties, position, sequence, history, message) in [
        (good, 4, 0, tokens, "the position of row 0 is 4, but there are only 4"),
        (good, 3, 1, tokens, "the sequence of row 0 is 1, but there are only 1"),
        (good, 3, 0, [0, 1, 4, 3], "the token of row 0 is 4, but there are only 4"),
        (
            Penalties { repeat: 0.0, ..good },
            3,
            0,
            tokens,
            "the penalties of row 0: the repetition penalty must be a finite number above 0, not 0",
        ),
        (
            Penalties { frequency: f32::NAN, ..good },
            3,
            0,
            tokens,
            "the penalties of row 0: the frequency penalty must be a finite number, not NaN",
        ),
        (
            Penalties { presence: f32::INFINITY, ..good },
            3,
            0,
            tokens,
            "the penalties of row 0: the presence penalty must be a finite number, not inf",
        ),
    ] {
        let logits = put(&mut cuda, &[1f32; 4]);
        let call = PenalizeCall {
            logits,
            penalties: put(&mut cuda, &[penalties]),
            history: TokenHistory { ptr: put(&mut cuda, &history), n_seqs: 1, capacity: 4 },
            positions: put(&mut cuda, &[position]),
            sequences: Some(put(&mut cuda, &[sequence])),
            output: logits,
            m: 1,
            n: 4,
        };
        cuda.dispatch_penalize(&call).unwrap();
        reported(&mut cuda, message);
        assert_eq!(get(&mut cuda, logits, 4), [1f32.to_bits(); 4]);
    }
    let (drawn, zero) = (put(&mut cuda, &[5u32]), put(&mut cuda, &[0u32; 4]));
    let (tokens, positions) = (put(&mut cuda, &[0u32]), put(&mut cuda, &[0u32]));
    let sequences = Some(put(&mut cuda, &[7u32]));
    let history = TokenHistory { ptr: zero, n_seqs: 1, capacity: 4 };
    cuda.dispatch_advance(&AdvanceCall { drawn, tokens, positions, sequences, history, m: 1 }).unwrap();
    reported(&mut cuda, "the sequence of row 0 is 7, but there are only 1");
    assert_eq!((get(&mut cuda, tokens, 1), get(&mut cuda, zero, 4)), (vec![0], vec![0; 4]));
}

#[test]
fn invalid_logit_edits_are_reported() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let inf = f32::INFINITY.to_bits();
    for (slot, edits, message) in [
        (2, [0, 0, 0, 0], "the sampling slot of row 1 is 2, but there are only 2"),
        (1, [0, 1, 4, 0], "the token of row 1 is 4, but there are only 4"),
        (1, [0, 2, 1, 0], "the logit edits of row 1: there are 2 logit biases, but only 1 are possible"),
        (
            1,
            [0, 1, 3, inf],
            "the logit edits of row 1: the logit bias of token 3 must be a finite number or -inf, not inf",
        ),
    ] {
        let logits = put(&mut cuda, &[1f32; 8]);
        let edits = [[0u32; 4], edits].concat();
        let (edits_ptr, masks_ptr) = (put(&mut cuda, &edits), put(&mut cuda, &[0u32; 2]));
        let state = LogitSlots { edits_ptr, masks_ptr, n_slots: 2, capacity: 1 };
        let slots = Some(put(&mut cuda, &[0u32, slot]));
        let call = MaskLogitsCall { logits, state, slots, output: logits, m: 2, n: 4 };
        cuda.dispatch_mask_logits(&call).unwrap();
        reported(&mut cuda, message);
        assert_eq!(get(&mut cuda, logits, 8), [1f32.to_bits(); 8]);
    }
}
