//! Loading onto a device that imports all weights at once, through memory that the reader fills.

mod tiny;

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fulmen_core::*;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, LoadOptions, LoadProgress, Model};
use fulmen_model::ModelError;
use fulmen_model::source::{self, ModelSource};
use fulmen_model::synth::{ModelShape, Synth};
use tiny::{LLAMA, SHAPES, Tiny};

/// Bytes of a part, about: small, so that weights are read in many.
const PART: usize = 1000;

/// What happens to a device while weights are imported.
#[derive(Default)]
struct Events {
    /// Allocations that were not freed.
    live: AtomicUsize,
    /// Called after so many parts.
    after: usize,
    call: Option<Box<dyn Fn() + Send + Sync>>,
    called: AtomicBool,
    /// A type of weights that the device has no kernels for.
    refused: Option<DType>,
}

/// The CPU as a device that imports weights in bulk, on three threads.
struct Bulk(CpuDispatcher, Arc<Events>);

macro_rules! delegate {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.0.$method(call)
        })*
    };
}

impl KernelDispatch for Bulk {
    fn backend(&self) -> &'static str {
        "bulk"
    }
    delegate! {
        dispatch(OpCall), dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall),
        dispatch_add(BinaryCall), dispatch_rope(RopeCall), dispatch_attention(AttentionCall),
        dispatch_copy(CopyCall), dispatch_mul(BinaryCall), dispatch_silu(UnaryCall),
    }
}

impl DeviceMemory for Bulk {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.1.live.fetch_add(1, Ordering::Relaxed);
        self.0.alloc(bytes)
    }
    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.1.live.fetch_sub(1, Ordering::Relaxed);
        self.0.free(ptr)
    }
    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.0.write(ptr, data)
    }
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.0.start_read(ptr, bytes)
    }

    fn supports_weight(&self, dtype: DType) -> bool {
        self.1.refused != Some(dtype)
    }

    fn import_weights(
        &mut self,
        weights: &[WeightSpec],
        reader: &dyn WeightReader,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BulkImport, BackendError> {
        let mut parts = Vec::new();
        let mut data: Vec<Vec<u8>> = weights.iter().map(|weight| vec![0xee; weight.bytes]).collect();
        for ((at, weight), data) in weights.iter().enumerate().zip(&mut data) {
            let part = PART.next_multiple_of(weight.dtype.block_bytes());
            parts.extend(data.chunks_mut(part).enumerate().map(|(i, out)| (at, i * part, out)));
        }
        // Threads take every third part: they are not read in order.
        let (events, done) = (&self.1, AtomicUsize::new(0));
        let mut piles: [Vec<_>; 3] = Default::default();
        parts.into_iter().enumerate().for_each(|(i, part)| piles[i % 3].push(part));
        let read = |pile: Vec<(usize, usize, &mut [u8])>| {
            pile.into_iter().fold(true, |all, (weight, offset, out)| {
                if done.fetch_add(1, Ordering::Relaxed) >= events.after
                    && let Some(call) = &events.call
                    && !events.called.swap(true, Ordering::Relaxed)
                {
                    call();
                }
                reader.read(weight, offset, out) & all
            })
        };
        let complete = std::thread::scope(|scope| {
            let threads = piles.map(|pile| scope.spawn(move || read(pile)));
            threads.map(|thread| thread.join().unwrap()).iter().all(|all| *all)
        });
        if !complete {
            return Ok(BulkImport::Stopped);
        }
        progress(data.iter().map(|data| data.len() as u64).sum());
        let mut addresses = Vec::new();
        for data in data {
            let ptr = self.alloc(data.len())?;
            self.write(ptr, &data)?;
            addresses.push(ptr);
        }
        Ok(BulkImport::Imported(addresses))
    }
}

fn load(source: Arc<dyn ModelSource>, events: &Arc<Events>) -> Result<Model, ModelError> {
    let device = Bulk(CpuDispatcher::with_threads(1), Arc::clone(events));
    Model::from_source(source, Box::new(device), LoadOptions::default())
}

#[test]
fn the_model_is_the_same_however_it_was_imported() {
    for shape in SHAPES {
        let tiny = Arc::new(Tiny::new(shape, 3));
        let events = Arc::new(Events::default());
        let bulk = load(tiny.clone(), &events).unwrap();
        let cpu = Box::new(CpuDispatcher::with_threads(1));
        let plain = Model::from_source(tiny, cpu, LoadOptions::default()).unwrap();
        assert_eq!(bulk.weight_bytes(), plain.weight_bytes());
        let logits = |model: &Model| model.session().unwrap().logits(0, &[5, 6, 7, 8]).unwrap();
        assert_eq!(logits(&bulk), logits(&plain));
        drop(bulk);
        assert_eq!(events.live.load(Ordering::Relaxed), 0);
    }
}

/// A model file of f16 weights, whose norms are converted to f32.
fn file(folder: &Path) -> PathBuf {
    let shape = ModelShape { layers: 3, vocabulary: 700, ..ModelShape::preset("tiny-llama").unwrap() };
    let path = folder.join("model.gguf");
    fs::write(&path, Synth::new(shape, "q4_k_m".parse().unwrap(), 1).bytes().unwrap()).unwrap();
    path
}

#[test]
fn files_are_read_in_parts_and_progress_is_reported_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path());
    let plain = Model::load(&path, Box::new(CpuDispatcher::with_threads(1))).unwrap();
    for check_weights in [false, true] {
        let device = Box::new(Bulk(CpuDispatcher::with_threads(1), Arc::default()));
        let mut reports = Vec::new();
        let mut report = |progress: LoadProgress| {
            reports.push(progress);
            ControlFlow::Continue(())
        };
        let options = LoadOptions { check_weights, progress: Some(&mut report), ..LoadOptions::default() };
        let bulk = Model::load_with(&path, device, options).unwrap();
        let logits = |model: &Model| model.session().unwrap().logits(0, &[5, 6, 7, 8]).unwrap();
        assert_eq!(logits(&bulk), logits(&plain));
        let last = reports.last().unwrap();
        let steps = if check_weights { 2 } else { 1 };
        assert_eq!((last.done, last.total), (last.total, plain.weight_bytes() * steps));
        assert!(reports.windows(2).all(|pair| pair[0].done <= pair[1].done));
    }
}

#[test]
fn loading_ends_at_any_report_and_frees_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path());
    for (check_weights, bulk) in [(false, true), (true, true), (false, false), (true, false)] {
        // At each report, until there are no more.
        let mut ended = 0;
        for end in 0.. {
            let events = Arc::<Events>::default();
            let device: Device = match bulk {
                true => Box::new(Bulk(CpuDispatcher::with_threads(1), Arc::clone(&events))),
                false => Box::new(CpuDispatcher::with_threads(1)),
            };
            let mut reports = 0;
            let mut report = |_| {
                reports += 1;
                if reports > end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let options =
                LoadOptions { check_weights, progress: Some(&mut report), ..LoadOptions::default() };
            match Model::load_with(&path, device, options) {
                Err(ModelError::Cancelled) => ended += 1,
                loaded => {
                    loaded.unwrap();
                    break;
                }
            }
            assert_eq!(events.live.load(Ordering::Relaxed), 0, "after {end} reports");
        }
        assert!(ended >= 2, "{ended}");
    }
}

#[test]
fn a_part_of_a_tensor_is_what_the_whole_has_there() {
    let folder = tempfile::tempdir().unwrap();
    let source = source::open(file(folder.path())).unwrap();
    for info in source.tensors() {
        let whole = source.data(info.name()).unwrap();
        let whole = (*whole).as_ref();
        for (offset, bytes) in [(0, whole.len()), (whole.len() / 3, whole.len() / 2), (whole.len(), 0)] {
            let mut part = vec![0xee; bytes];
            if source.read_at(info.name(), offset, &mut part).unwrap() {
                assert!(part == whole[offset..offset + bytes], "{info}");
            }
        }
    }
    assert!(source.read_at("no such tensor", 0, &mut []).is_err());
}

#[test]
fn the_first_value_that_is_not_finite_is_named() {
    let mut tiny = Tiny::new(LLAMA, 1);
    let nan = f32::NAN.to_le_bytes();
    tiny.spoil("blk.1.ffn_norm.weight", 12, &nan);
    tiny.spoil("blk.1.ffn_norm.weight", 5, &nan);
    let events = Arc::new(Events::default());
    let error = load(Arc::new(tiny.clone()), &events).unwrap_err();
    let on_cpu =
        Model::from_source(Arc::new(tiny), Box::new(CpuDispatcher::with_threads(1)), LoadOptions::default());
    assert_eq!(error.to_string(), on_cpu.unwrap_err().to_string());
    assert!(matches!(&error, ModelError::NotFinite { name, .. } if name == "blk.1.ffn_norm.weight"));
    assert_eq!(events.live.load(Ordering::Relaxed), 0, "nothing is left on the device");
}

#[test]
fn a_file_that_is_truncated_while_it_is_copied_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path());
    let cut = path.clone();
    let truncate = move || File::options().write(true).open(&cut).unwrap().set_len(8192).unwrap();
    let events = Arc::new(Events { after: 20, call: Some(Box::new(truncate)), ..Events::default() });
    let error = load(Arc::from(source::open(&path).unwrap()), &events).unwrap_err().to_string();
    assert!(events.called.load(Ordering::Relaxed));
    assert!(error.contains("model.gguf") && error.contains("changed while it was open"), "{error}");
    assert_eq!(events.live.load(Ordering::Relaxed), 0, "nothing is left on the device");
}

#[test]
fn a_type_without_kernels_is_refused_by_name_before_anything_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let source: Arc<dyn ModelSource> = Arc::from(source::open(file(folder.path())).unwrap());
    let first = source.tensors().iter().find(|info| info.dtype() == DType::Q4_K).unwrap().name().to_owned();
    let count: Box<dyn Fn() + Send + Sync> = Box::new(|| ());
    let events = Events { refused: Some(DType::Q4_K), call: Some(count), ..Events::default() };
    let events = Arc::new(events);
    let error = load(Arc::clone(&source), &events).unwrap_err();
    assert!(matches!(error, ModelError::WeightType { dtype: DType::Q4_K, backend: "bulk", .. }), "{error}");
    assert_eq!(
        error.to_string(),
        format!(
            "tensor {first:?} has the type Q4_K, for which bulk has no kernels; run the model on wgpu or the \
             CPU (--device wgpu, --device cpu)"
        )
    );
    assert!(!events.called.load(Ordering::Relaxed), "no weight was read");
    let events = Arc::new(Events { refused: Some(DType::Q5_K), ..Events::default() });
    assert!(load(source, &events).is_ok(), "the file has no Q5_K");
}
