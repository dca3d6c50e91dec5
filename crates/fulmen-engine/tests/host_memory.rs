//! What a loaded model keeps on the host, and when it looks at its source again.

mod tiny;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fulmen_core::*;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, Session, SessionOptions};
use fulmen_model::gguf::Metadata;
use fulmen_model::source::{ModelSource, SourceError, TensorInfo};
use tiny::{QWEN3, SHAPES, Tiny};

/// Counts how often tensors are looked up.
struct Counting {
    tiny: Tiny,
    lookups: AtomicUsize,
}

impl ModelSource for Counting {
    fn metadata(&self) -> &Metadata {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.tiny.metadata()
    }
    fn tensors(&self) -> &[TensorInfo] {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.tiny.tensors()
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.tiny.tensor(name)
    }
    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.tiny.data(name)
    }
}

/// The CPU as a device with memory of its own: an import is a copy.
struct Copying(CpuDispatcher);

macro_rules! delegate {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.0.$method(call)
        })*
    };
}

impl KernelDispatch for Copying {
    fn backend(&self) -> &'static str {
        "copying"
    }
    delegate! {
        dispatch(OpCall), dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall),
        dispatch_add(BinaryCall), dispatch_rope(RopeCall), dispatch_attention(AttentionCall),
        dispatch_copy(CopyCall), dispatch_mul(BinaryCall), dispatch_silu(UnaryCall),
    }
}

impl DeviceMemory for Copying {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.0.alloc(bytes)
    }
    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.0.free(ptr)
    }
    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.0.write(ptr, data)
    }
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.0.start_read(ptr, bytes)
    }
}

fn load(source: &Arc<Counting>, copies: bool) -> Model {
    let cpu = CpuDispatcher::with_threads(1);
    let device: Box<dyn Backend + Send> = if copies { Box::new(Copying(cpu)) } else { Box::new(cpu) };
    let session = SessionOptions { context: 64, sequences: 3, ..SessionOptions::default() };
    let source = Arc::clone(source) as Arc<dyn ModelSource>;
    Model::from_source(source, device, LoadOptions { session, ..LoadOptions::default() }).unwrap()
}

/// A prefill of every length up to 9 with every kind of result, and decodes of 1 to 3 rows.
fn run(session: &mut Session) -> (Vec<f32>, Vec<u32>) {
    let (mut logits, mut tokens) = (Vec::new(), Vec::new());
    for rows in 1..10u32 {
        let prompt: Vec<u32> = (0..rows).map(|i| (i * 7 + rows) % 101).collect();
        for sequence in 0..3 {
            session.truncate(sequence, 0).unwrap();
        }
        logits.extend(session.logits(0, &prompt).unwrap());
        logits.extend(session.hidden(1, &prompt).unwrap());
        tokens.push(session.draw(2, &prompt).unwrap());
        let batch: Vec<u32> = (0..=rows % 3).collect();
        tokens.extend(session.decode(&batch, 2).unwrap().concat());
    }
    (logits, tokens)
}

#[test]
fn a_device_that_copies_weights_leaves_none_on_the_host() {
    for shape in SHAPES {
        let source = Arc::new(Counting { tiny: Tiny::new(shape, 5), lookups: AtomicUsize::new(0) });
        let (in_place, copied) = (load(&source, false), load(&source, true));
        assert_eq!(Arc::strong_count(&source), 2, "only the model whose device reads in place keeps it");
        let expected = run(&mut in_place.session().unwrap());
        // Fused tensors are described as they are read, in parts.
        let described = (in_place.source().metadata().clone(), in_place.source().tensors().to_vec());
        drop(in_place);
        assert_eq!(Arc::strong_count(&source), 1);
        for info in source.tiny.tensors() {
            // That of the source and the one just made.
            assert_eq!(Arc::strong_count(&source.tiny.data(info.name()).unwrap()), 2, "{info}");
        }
        let looked_up = source.lookups.load(Ordering::Relaxed);
        assert_eq!(run(&mut copied.session().unwrap()), expected, "{}", shape.arch);
        assert_eq!(source.lookups.load(Ordering::Relaxed), looked_up);

        // What is left says what the model is, but has no data.
        let left = copied.source();
        assert_eq!((left.metadata(), left.tensors()), (&described.0, &*described.1));
        assert_eq!(left.metadata(), &source.tiny.metadata);
        let name = left.tensors()[0].name();
        let error = left.data(name).map(drop).unwrap_err().to_string();
        let released = "was released when the model was loaded onto the device";
        assert_eq!(error, format!("the data of tensor {name:?} {released}"));
    }
}

#[test]
fn a_new_row_count_does_not_look_at_the_source() {
    let source = Arc::new(Counting { tiny: Tiny::new(QWEN3, 6), lookups: AtomicUsize::new(0) });
    let model = load(&source, false);
    let mut session = model.session().unwrap();
    // One of each kind.
    session.logits(0, &[1, 2, 3]).unwrap();
    session.hidden(1, &[1, 2, 3]).unwrap();
    session.draw(2, &[1, 2, 3]).unwrap();
    session.decode(&[0, 1], 1).unwrap();
    session.truncate(0, 0).unwrap();
    session.feed(0, &[1, 2, 3]).unwrap();
    let looked_up = source.lookups.load(Ordering::Relaxed);
    run(&mut session);
    // Another session of this model instantiates the same templates.
    run(&mut model.session().unwrap());
    assert_eq!(source.lookups.load(Ordering::Relaxed), looked_up);
}
