//! Invalid models are rejected with the key or tensor, the expected and the actual value; a valid one then
//! loads.

mod tiny;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmen_core::*;
use fulmen_cpu::CpuDispatcher;
use fulmen_model::gguf::{Array, Value};
use fulmen_model::{LoadOptions, Model, ModelError, SessionOptions};
use tiny::{LLAMA, QWEN2, QWEN3, SHAPES, Tiny, TinyShape};

fn with(key: &str, value: impl Into<Value>) -> String {
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.set(key, value);
    tiny.refusal()
}

#[test]
fn keys_that_are_missing_or_of_another_type() {
    for shape in SHAPES {
        for key in [
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "context_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon",
        ] {
            let key = format!("{}.{key}", shape.arch);
            let mut tiny = Tiny::new(shape, 1);
            tiny.metadata.remove(&key);
            let message = tiny.refusal();
            assert!(message.starts_with(&format!("metadata key {key:?} is missing")), "{message}");
            tiny.metadata.set(key.clone(), "many");
            let message = tiny.refusal();
            assert!(message.starts_with(&format!("metadata key {key:?} must be")), "{message}");
            assert!(message.ends_with("is string"), "{message}");
        }
    }
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.remove("general.architecture");
    assert!(tiny.refusal().contains("key \"general.architecture\" is missing"));
}

#[test]
fn other_architectures_are_refused_by_name() {
    assert_eq!(
        with("general.architecture", "mamba"),
        "architecture \"mamba\" is not supported (supported: llama, qwen2, qwen3)"
    );
    let message = with("llama.expert_count", 8u32);
    assert!(message.contains("llama.expert_count") && message.contains("experts"), "{message}");
}

#[test]
fn numbers_outside_their_range() {
    for (key, value, expected) in [
        ("llama.block_count", 0u32, "must be from 1 to 1024, is 0"),
        ("llama.block_count", 1_000_000, "must be from 1 to 1024, is 1000000"),
        ("llama.embedding_length", 0, "must be from 1 to 1048576, is 0"),
        ("llama.feed_forward_length", u32::MAX, "must be from 1 to 1048576, is 4294967295"),
        ("llama.context_length", 0, "must be from 1 to 268435456, is 0"),
        ("llama.attention.head_count", 0, "must be from 1 to 4096, is 0"),
        ("llama.attention.head_count_kv", 0, "must be from 1 to 4, is 0"),
        ("llama.attention.head_count_kv", 3, "must be a divisor of the 4 query heads, is 3"),
        ("llama.attention.head_count_kv", 8, "must be from 1 to 4, is 8"),
        ("llama.attention.key_length", 0, "must be from 1 to 16384, is 0"),
        ("llama.attention.key_length", 15, "must be even, is 15"),
        ("llama.attention.value_length", 32, "must be the key length 16, is 32"),
        ("llama.rope.dimension_count", 0, "must be even and from 2 to the head size 16, is 0"),
        ("llama.rope.dimension_count", 7, "must be even and from 2 to the head size 16, is 7"),
        ("llama.rope.dimension_count", 18, "must be even and from 2 to the head size 16, is 18"),
        ("llama.vocab_size", 100, "must be the 101 rows of token_embd.weight, is 100"),
    ] {
        assert_eq!(with(key, value), format!("metadata key {key:?} {expected}"));
    }
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.remove("llama.attention.key_length");
    tiny.metadata.set("llama.attention.head_count", 6u32);
    let message = tiny.refusal();
    assert!(message.contains("must be a divisor of the embedding length 64, is 6"), "{message}");
}

#[test]
fn floats_that_are_zero_negative_or_not_finite() {
    for key in ["llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.rope.scaling.factor"]
    {
        for value in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
            let message = with(key, value);
            let expected = format!("metadata key {key:?} must be a positive finite number, is {value}");
            assert_eq!(message, expected);
        }
    }
    let message = with("llama.rope.scaling.type", "longrope");
    assert!(message.ends_with("must be none, linear or yarn, is \"longrope\""), "{message}");
    let message = with("llama.rope.scaling.type", "yarn");
    assert!(message.contains("rope.scaling.factor"), "{message}");
}

#[test]
fn a_vocabulary_of_another_size_than_the_embedding() {
    let words: Vec<String> = (0..100).map(|i| format!("w{i}")).collect();
    let message = with("tokenizer.ggml.tokens", Array::strings(&words));
    assert_eq!(
        message,
        "metadata key \"tokenizer.ggml.tokens\" must be the 101 rows of token_embd.weight, is 100"
    );
}

#[test]
fn tensors_that_are_missing() {
    for (shape, names) in [
        (LLAMA, &["token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight"][..]),
        (QWEN2, &["blk.0.attn_q.bias", "blk.1.attn_v.bias", "blk.0.attn_norm.weight"]),
        (QWEN3, &["blk.0.attn_q_norm.weight", "blk.1.attn_k_norm.weight", "blk.1.attn_output.weight"]),
    ] {
        for name in names {
            let mut tiny = Tiny::new(shape, 1);
            tiny.remove(name);
            let message = tiny.refusal();
            assert!(message.starts_with(&format!("tensor {name:?} is missing (")), "{message}");
        }
    }
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.metadata.set("llama.block_count", 3u32);
    assert_eq!(tiny.refusal(), "tensor \"blk.2.attn_norm.weight\" is missing (expected [64])");
}

#[test]
fn tensors_that_do_not_belong() {
    for (shape, name) in [
        (LLAMA, "blk.0.attn_q_norm.weight"),
        (QWEN3, "blk.1.attn_q.bias"),
        (QWEN2, "blk.0.attn_output.bias"),
        (LLAMA, "blk.2.attn_norm.weight"),
        (LLAMA, "vision.weight"),
    ] {
        let mut tiny = Tiny::new(shape, 1);
        tiny.put(name, &[16], DType::F32, &[1.0; 16]);
        let arch = shape.arch;
        let expected = format!("1 tensor does not belong to a {arch} model: {name:?}");
        assert_eq!(tiny.refusal(), expected);
    }
    // Redundant tensors of old files are ignored.
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.0.attn_rot_embd.weight", &[8], DType::F32, &[1.0; 8]);
    tiny.load(SessionOptions::default()).unwrap();
}

#[test]
fn tensors_of_another_shape_or_type() {
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.0.ffn_up.weight", &[96, 64], DType::F32, &[0.5; 96 * 64]);
    assert_eq!(
        tiny.refusal(),
        "tensor \"blk.0.ffn_up.weight\" must have the shape [64, 96], has [96, 64] (it is transposed)"
    );
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.0.ffn_up.weight", &[64, 95], DType::F32, &[0.5; 95 * 64]);
    assert_eq!(tiny.refusal(), "tensor \"blk.0.ffn_up.weight\" must have the shape [64, 96], has [64, 95]");
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("blk.1.attn_norm.weight", &[64], DType::Q8_0, &[0.5; 64]);
    assert_eq!(tiny.refusal(), "tensor \"blk.1.attn_norm.weight\" must have type F32, F16 or BF16, has Q8_0");
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.put("rope_freqs.weight", &[7], DType::F32, &[1.0; 7]);
    assert_eq!(tiny.refusal(), "tensor \"rope_freqs.weight\" must have the shape [8], has [7]");
}

#[test]
fn weights_and_scales_that_are_not_finite() {
    let nan = f32::NAN.to_le_bytes();
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.spoil("blk.1.attn_norm.weight", 4 * 17, &nan);
    let expected =
        "tensor \"blk.1.attn_norm.weight\": the value or block scale at element 17 is NaN or infinite";
    assert_eq!(tiny.refusal(), expected);
    let mut tiny = Tiny::new(TinyShape { dtype: DType::Q8_0, ..LLAMA }, 1);
    // The scale of the third block.
    tiny.spoil("blk.0.attn_q.weight", 2 * 34, &[0x00, 0xfc]);
    let expected =
        "tensor \"blk.0.attn_q.weight\": the value or block scale at element 64 is NaN or infinite";
    assert_eq!(tiny.refusal(), expected);
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.spoil("rope_freqs.weight", 0, &0f32.to_le_bytes());
    assert!(tiny.refusal().starts_with("tensor \"rope_freqs.weight\""));
}

#[test]
fn options_of_a_session_that_make_no_sense() {
    let tiny = Tiny::new(LLAMA, 1);
    let refused = |options: SessionOptions| tiny.load(options).map(drop).unwrap_err().to_string();
    let good = SessionOptions::default();
    assert_eq!(
        refused(SessionOptions { context: 257, ..good }),
        "a context of 257 tokens exceeds the model's limit of 256"
    );
    assert!(refused(SessionOptions { sequences: 0, ..good }).contains("at least 1, is 0"));
    assert!(refused(SessionOptions { cache: DType::Q4_0, ..good }).contains("F16, Q8_0 or F32, is Q4_0"));
    // Heads of 16 are half a block.
    assert!(refused(SessionOptions { cache: DType::Q8_0, ..good }).contains("Q8_0 with a head size of 16"));
}

#[test]
fn prompts_that_do_not_fit() {
    let model =
        Tiny::new(LLAMA, 1).load(SessionOptions { context: 32, ..SessionOptions::default() }).unwrap();
    let mut session = model.session().unwrap();
    assert!(matches!(session.draw(0, &[]), Err(ModelError::EmptyPrompt)));
    assert!(matches!(session.logits(0, &[]), Err(ModelError::EmptyPrompt)));
    assert!(matches!(session.decode(&[0], 1), Err(ModelError::EmptyPrompt)));
    let error = session.feed(0, &[1; 33]).unwrap_err().to_string();
    assert_eq!(error, "the prompt of 33 tokens does not fit into the context of 32 (0 positions in use)");
    assert!(session.feed(0, &vec![1; 1_000_000]).is_err());
    let error = session.feed(0, &[5, 101]).unwrap_err().to_string();
    assert_eq!(error, "token 101 at index 1 is outside the vocabulary of 101 tokens");
    assert!(session.tokens(0).unwrap().is_empty(), "what fails leaves nothing behind");
    // Exactly the context: logits, but no room for another token.
    assert_eq!(session.logits(0, &[1; 32]).unwrap().len(), 101);
    assert!(matches!(
        session.draw(0, &[]),
        Err(ModelError::PromptTooLong { tokens: 1, context: 32, used: 32 })
    ));
    assert!(matches!(session.decode(&[0], 1), Err(ModelError::PromptTooLong { .. })));
    session.truncate(0, 30).unwrap();
    assert_eq!(session.decode(&[0], 2).unwrap()[0].len(), 2);
    assert!(matches!(session.decode(&[0], 1), Err(ModelError::PromptTooLong { .. })));
    let error = session.feed(1, &[1]).unwrap_err().to_string();
    assert_eq!(error, "sequence 1 does not exist (sequences in this session: 1)");
    session.truncate(0, 5).unwrap();
    let error = session.decode(&[0, 0], 1).unwrap_err().to_string();
    assert_eq!(error, "sequence 0 was passed twice (sequences in this session: 1)");
}

#[test]
fn cancelling_stops_between_chunks_and_the_session_goes_on() {
    let options = SessionOptions { chunk: 4, ..SessionOptions::default() };
    let model = Tiny::new(LLAMA, 1).load(options).unwrap();
    let mut session = model.session().unwrap();
    let expected = session.draw(0, &[1, 2, 3]).unwrap();
    session.truncate(0, 0).unwrap();
    let flag = session.cancel_flag();
    flag.store(true, Ordering::Relaxed);
    assert!(matches!(session.draw(0, &[1, 2, 3]), Err(ModelError::Cancelled)));
    assert!(session.tokens(0).unwrap().is_empty());
    flag.store(false, Ordering::Relaxed);
    assert_eq!(session.draw(0, &[1, 2, 3]).unwrap(), expected);
}

/// A CPU device with little memory that counts leaks and fails on demand.
struct Small {
    cpu: CpuDispatcher,
    available: Option<u64>,
    prefill_chunk: u32,
    /// Allocations that still succeed.
    left: usize,
    /// Maximum number of live allocations.
    at_once: usize,
    alive: Arc<AtomicUsize>,
    captures: bool,
    program: Option<Program>,
    replays: Arc<AtomicUsize>,
}

impl Small {
    fn new() -> Small {
        Small {
            cpu: CpuDispatcher::with_threads(1),
            available: None,
            prefill_chunk: 512,
            left: usize::MAX,
            at_once: usize::MAX,
            alive: Arc::default(),
            captures: false,
            program: None,
            replays: Arc::default(),
        }
    }

    fn got(&mut self, result: Result<u64, BackendError>) -> Result<u64, BackendError> {
        let none = BackendError::OutOfMemory { needed: 1, available: Some(0) };
        self.left = self.left.checked_sub(1).ok_or(none)?;
        self.alive.fetch_add(1, Ordering::Relaxed);
        result
    }
}

impl DeviceMemory for Small {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        if self.left == 0 || self.alive.load(Ordering::Relaxed) >= self.at_once {
            return Err(BackendError::OutOfMemory { needed: bytes as u64, available: Some(0) });
        }
        let got = self.cpu.alloc(bytes);
        self.got(got)
    }
    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        if self.left == 0 {
            return Err(BackendError::OutOfMemory { needed: 1, available: Some(0) });
        }
        let got = self.cpu.import(bytes);
        self.got(got)
    }
    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.alive.fetch_sub(1, Ordering::Relaxed);
        self.cpu.free(ptr)
    }
    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.cpu.write(ptr, data)
    }
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.cpu.start_read(ptr, bytes)
    }
    fn available_bytes(&self) -> Option<u64> {
        self.available
    }
}

impl KernelDispatch for Small {
    fn backend(&self) -> &'static str {
        "small"
    }
    fn prefill_chunk(&self) -> u32 {
        self.prefill_chunk
    }
    fn dispatch_mul_mat(&mut self, call: &MulMatCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_mul_mat(call)
    }
    fn dispatch_rms_norm(&mut self, call: &RmsNormCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_rms_norm(call)
    }
    fn dispatch_add(&mut self, call: &BinaryCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_add(call)
    }
    fn dispatch_rope(&mut self, call: &RopeCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_rope(call)
    }
    fn dispatch_attention(&mut self, call: &AttentionCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_attention(call)
    }
    fn dispatch_copy(&mut self, call: &CopyCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_copy(call)
    }
    fn dispatch_mul(&mut self, call: &BinaryCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_mul(call)
    }
    fn dispatch_silu(&mut self, call: &UnaryCall) -> Result<usize, BackendError> {
        self.cpu.dispatch_silu(call)
    }
    fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
        self.cpu.dispatch(call)
    }
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        if !self.captures {
            return Ok(None);
        }
        self.program = Some(program.clone());
        Ok(Some(ReplayId(7)))
    }
    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        assert_eq!(id, ReplayId(7));
        let program = self.program.clone().expect("it was captured");
        self.replays.fetch_add(1, Ordering::Relaxed);
        for step in program.calls() {
            self.cpu.dispatch(&step.call)?;
        }
        Ok(1)
    }
    fn release(&mut self, id: ReplayId) {
        assert_eq!(id, ReplayId(7));
        assert!(self.program.take().is_some(), "released twice");
    }
}

fn load(device: Small) -> Result<Model, ModelError> {
    Model::from_source(Arc::new(Tiny::new(QWEN3, 1)), Box::new(device), LoadOptions::default())
}

#[test]
fn too_little_memory_is_seen_before_anything_is_loaded() {
    let small = Small { available: Some(100_000), ..Small::new() };
    let alive = Arc::clone(&small.alive);
    let error = load(small).map(drop).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, ModelError::Memory { available: 100_000, .. }), "{message}");
    assert!(
        message.starts_with("not enough memory: ") && message.contains("97.7 KiB available"),
        "{message}"
    );
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    load(Small { available: Some(100 << 20), ..Small::new() }).unwrap();
}

#[test]
fn a_chunk_is_as_large_as_pays_and_as_memory_allows() {
    let chunk = |available: Option<u64>, prefill_chunk: u32, asked: u32| {
        let mut tiny = Tiny::new(QWEN3, 1);
        tiny.metadata.set("qwen3.context_length", 3000u32);
        let small = Small { available, prefill_chunk, ..Small::new() };
        let session = SessionOptions { chunk: asked, ..SessionOptions::default() };
        let options = LoadOptions { session, ..LoadOptions::default() };
        let model = Model::from_source(Arc::new(tiny), Box::new(small), options).unwrap();
        let planned = model.session_options().chunk;
        assert_eq!(model.session().unwrap().options().chunk, planned);
        planned
    };
    let much = Some(1 << 40);
    assert_eq!(chunk(much, 512, 0), 512);
    assert_eq!(chunk(much, 2048, 0), 2048);
    assert_eq!(chunk(much, 100, 0), 100);
    assert_eq!(chunk(None, 2048, 0), 512);
    // Weights and caches take less than 10 MiB; a row of activations takes a few KiB.
    assert_eq!(chunk(Some(10 << 20), 2048, 0), 512);
    assert_eq!(chunk(Some(10 << 20), 2048, 100), 100);
    assert_eq!(chunk(None, 512, 4096), 4096);
}

#[test]
fn nothing_is_leaked_wherever_memory_ends() {
    let whole = Small::new();
    let alive = Arc::clone(&whole.alive);
    let model = load(whole).unwrap();
    let mut session = model.session().unwrap();
    session.draw(0, &[1, 2]).unwrap();
    session.decode(&[0], 2).unwrap();
    let all = alive.load(Ordering::Relaxed);
    drop(session);
    drop(model);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    for left in 0..all {
        let small = Small { left, ..Small::new() };
        let alive = Arc::clone(&small.alive);
        let run = || -> Result<(), ModelError> {
            let model = load(small)?;
            let mut session = model.session()?;
            session.draw(0, &[1, 2])?;
            session.decode(&[0], 2)?;
            Ok(())
        };
        let error = run().expect_err("memory ended");
        assert!(error.to_string().contains("out of memory"), "{error}");
        assert_eq!(alive.load(Ordering::Relaxed), 0, "after {left} allocations");
    }
}

#[test]
fn programs_that_are_kept_give_up_their_memory_for_the_next() {
    let draw = |at_once: usize| -> Result<(Vec<u32>, usize), ModelError> {
        let small = Small { at_once, ..Small::new() };
        let alive = Arc::clone(&small.alive);
        let mut session = load(small)?.session()?;
        let mut drawn = vec![session.draw(0, &[1, 2])?];
        let with_one = alive.load(Ordering::Relaxed);
        for prompt in [&[3, 4, 5][..], &[6, 7, 8, 9], &[1, 2, 3, 4, 5]] {
            session.truncate(0, 0)?;
            drawn.push(session.draw(0, prompt)?);
        }
        Ok((drawn, with_one))
    };
    let (expected, with_one) = draw(usize::MAX).unwrap();
    assert_eq!(draw(with_one).unwrap().0, expected);
    assert!(draw(with_one - 1).unwrap_err().to_string().contains("out of memory"));
}

#[test]
fn decode_steps_are_replayed_where_the_device_can_and_eager_if_asked() {
    let decode = |captures: bool, eager: bool| {
        let small = Small { captures, ..Small::new() };
        let replays = Arc::clone(&small.replays);
        let model = load(small).unwrap();
        let mut session = model.session_with(SessionOptions { eager, ..SessionOptions::default() }).unwrap();
        let mut tokens = vec![session.draw(0, &[1, 2, 3]).unwrap()];
        tokens.extend(session.decode(&[0], 1).unwrap().remove(0));
        tokens.extend(session.decode(&[0], 4).unwrap().remove(0));
        (tokens, replays.load(Ordering::Relaxed))
    };
    let (expected, none) = decode(false, false);
    assert_eq!(none, 0);
    assert_eq!(decode(true, false), (expected.clone(), 5));
    assert_eq!(decode(true, true), (expected, 0));
}
