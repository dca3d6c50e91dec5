//! Ranks whose devices run collectives themselves: chosen, refused, forced for one rank.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fulmen_core::*;
use fulmen_engine::{Collectives, CollectivesInUse, Device, Model, SessionOptions, TensorParallel};

use super::{SESSION, cpu, logits, nmse, options, whole};
use crate::tiny::{QWEN3, Tiny, TinyShape};

const SHAPE: TinyShape = TinyShape { heads: 12, kv_heads: 12, vocabulary: 120, ..QWEN3 };

/// A device that runs collectives itself, or has no library for it.
struct Joining {
    device: Device,
    place: u64,
    has_library: bool,
    communicator: Option<Arc<dyn Communicator>>,
    collectives: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct TestGroup(Mutex<Vec<Option<InProcessRank>>>);

impl DeviceGroup for TestGroup {
    fn id(&self) -> &[u8] {
        &[]
    }

    fn describe(&self) -> String {
        "a test".to_owned()
    }
}

fn unsupported(what: &str) -> BackendError {
    BackendError::Unsupported { backend: "test", what: what.to_owned() }
}

impl Joining {
    fn exchange(
        &mut self,
        input: u64,
        count: usize,
    ) -> Result<(Arc<dyn Communicator>, Vec<f32>), BackendError> {
        self.collectives.fetch_add(1, Ordering::Relaxed);
        let communicator = self.communicator.clone().ok_or_else(|| unsupported("no group"))?;
        let mut values = vec![0f32; count];
        self.device.read(input, bytemuck::cast_slice_mut(&mut values))?;
        Ok((communicator, values))
    }
}

macro_rules! forward {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.device.$method(call)
        })*
    };
}

impl KernelDispatch for Joining {
    fn backend(&self) -> &'static str {
        "test"
    }

    forward! {
        dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall), dispatch_add(BinaryCall),
        dispatch_rope(RopeCall), dispatch_attention(AttentionCall), dispatch_copy(CopyCall),
        dispatch_mul(BinaryCall), dispatch_silu(UnaryCall),
    }

    fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
        match call {
            OpCall::AllReduce(call) => {
                let (communicator, mut values) = self.exchange(call.input, call.n_elements)?;
                communicator.all_reduce(&mut values)?;
                self.device.write(call.output, bytemuck::cast_slice(&values))?;
                Ok(1)
            }
            OpCall::AllGather(call) => {
                let (m, width) = (call.m as usize, call.width as usize);
                let (communicator, values) = self.exchange(call.input, m * width)?;
                let all = communicator.all_gather(&values)?;
                for row in 0..m {
                    for rank in 0..call.ranks as usize {
                        let first = (rank * m + row) * width;
                        let at = 4 * (row * width * call.ranks as usize + rank * width) as u64;
                        let part = bytemuck::cast_slice(&all[first..first + width]);
                        self.device.write(call.output + at, part)?;
                    }
                }
                Ok(1)
            }
            call => self.device.dispatch(call),
        }
    }

    fn group_device(&self) -> Option<u64> {
        Some(self.place)
    }

    fn device_group(&self, spec: &GroupSpec<'_>) -> Result<Arc<dyn DeviceGroup>, BackendError> {
        match self.has_library {
            true => {
                let ranks = in_process_group(spec.ranks, spec.timeout).into_iter().map(Some).collect();
                Ok(Arc::new(TestGroup(Mutex::new(ranks))))
            }
            false => Err(unsupported("collectives without a library")),
        }
    }

    fn join_group(
        &mut self,
        group: &Arc<dyn DeviceGroup>,
        rank: u32,
    ) -> Result<Arc<dyn Communicator>, BackendError> {
        let group: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(group) as _;
        let group = group.downcast::<TestGroup>().map_err(|_| unsupported("another group"))?;
        let end = group.0.lock().unwrap()[rank as usize].take().unwrap();
        // Returns when all have joined, as a library does.
        end.barrier()?;
        let communicator: Arc<dyn Communicator> = Arc::new(end);
        self.communicator = Some(Arc::clone(&communicator));
        Ok(communicator)
    }
}

impl DeviceMemory for Joining {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.device.alloc(bytes)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.device.free(ptr)
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.device.write(ptr, data)
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.device.start_read(ptr, bytes)
    }

    fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        self.device.import_weight(bytes, dtype, rows, width)
    }

    fn reads_imports_in_place(&self) -> bool {
        self.device.reads_imports_in_place()
    }
}

/// Devices at these places, and the number of collectives that they have run.
fn devices(places: &[u64], has_library: bool) -> (Vec<Device>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let device = |&place: &u64| -> Device {
        let (device, collectives) = (cpu(), Arc::clone(&count));
        Box::new(Joining { device, place, has_library, communicator: None, collectives })
    };
    (places.iter().map(device).collect(), count)
}

fn load(devices: Vec<Device>, collectives: Collectives) -> Result<Model, fulmen_model::ModelError> {
    let parallel = TensorParallel { collectives, ..TensorParallel::new(devices) };
    Model::from_source_sharded(Arc::new(Tiny::new(SHAPE, 11)), parallel, options())
}

#[test]
fn different_devices_run_their_collectives_themselves() {
    let expected = logits(&whole(&Tiny::new(SHAPE, 11)));
    for (places, collectives) in [(&[4, 7][..], Collectives::Auto), (&[1, 1, 1][..], Collectives::Device)] {
        let (devices, count) = devices(places, true);
        let model = load(devices, collectives).unwrap();
        assert_eq!(model.collectives(), Some(&CollectivesInUse::Device("a test".to_owned())));
        let error = nmse(&logits(&model), &expected);
        assert!(error <= 1e-6, "{error}");
        assert!(count.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn the_host_runs_them_if_devices_are_the_same_or_cannot() {
    let (same, same_count) = devices(&[0, 0], true);
    let model = load(same, Collectives::Auto).unwrap();
    assert_eq!(model.collectives(), Some(&CollectivesInUse::Host { instead: None }));
    let (without, _) = devices(&[0, 1], false);
    let model = load(without, Collectives::Auto).unwrap();
    let reason = "test cannot run collectives without a library".to_owned();
    let used = model.collectives().unwrap();
    assert_eq!(used, &CollectivesInUse::Host { instead: Some(reason.clone()) });
    assert_eq!(used.to_string(), format!("the host, because {reason}"));
    logits(&model);
    let (asked, _) = devices(&[0, 1], true);
    let model = load(asked, Collectives::Host).unwrap();
    assert_eq!(model.collectives().unwrap().to_string(), "the host");
    assert_eq!(same_count.load(Ordering::Relaxed), 0);
}

#[test]
fn collectives_of_devices_can_be_required() {
    let (without, _) = devices(&[0, 1], false);
    let error = load(without, Collectives::Device).unwrap_err().to_string();
    assert!(error.contains("collectives without a library"), "{error}");
    let error = load(vec![cpu(), cpu()], Collectives::Device).unwrap_err().to_string();
    assert!(error.contains("collectives of a group of 2 inside a program"), "{error}");
}

#[test]
fn one_rank_runs_collectives_if_they_are_required() {
    let tiny = Tiny::new(SHAPE, 11);
    let (one, count) = devices(&[0], true);
    let model = load(one, Collectives::Device).unwrap();
    assert_eq!(logits(&model), logits(&whole(&tiny)));
    assert!(count.load(Ordering::Relaxed) > 0);
    let (one, count) = devices(&[0], true);
    logits(&load(one, Collectives::Auto).unwrap());
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
fn a_canceled_session_of_ranks_goes_on_afterwards() {
    let (two, _) = devices(&[0, 1], true);
    let model = load(two, Collectives::Auto).unwrap();
    let mut session = model.session().unwrap();
    let expected = model.session().unwrap().draw(0, &[1, 2, 3]).unwrap();
    session.cancel_flag().store(true, Ordering::Relaxed);
    let error = session.draw(0, &[1, 2, 3]).unwrap_err();
    assert!(matches!(error, fulmen_model::ModelError::Cancelled), "{error}");
    session.cancel_flag().store(false, Ordering::Relaxed);
    assert_eq!(session.draw(0, &[1, 2, 3]).unwrap(), expected);
}

#[test]
fn a_rank_alone_has_its_part_of_the_weights() {
    let tiny = Arc::new(Tiny::new(SHAPE, 11));
    let rank = Model::from_source_rank_alone(tiny.clone(), cpu(), 3, options()).unwrap();
    assert_eq!(rank.ranks(), 1);
    assert!(rank.weight_bytes() < whole(&tiny).weight_bytes() / 2);
    // It runs, whatever it computes.
    let mut session = rank.session().unwrap();
    assert_eq!(session.logits(0, &[1, 2, 3]).unwrap().len(), SHAPE.vocabulary);
    // What it draws is a token.
    for eager in [false, true] {
        let mut session = rank.session_with(SessionOptions { eager, ..SESSION }).unwrap();
        session.feed(0, &[1, 2, 3]).unwrap();
        let drawn = session.decode(&[0], 4).unwrap().concat();
        assert!(drawn.iter().all(|&token| (token as usize) < SHAPE.vocabulary), "{drawn:?}");
    }
    let error = Model::from_source_rank_alone(tiny, cpu(), 5, options()).unwrap_err().to_string();
    assert!(error.contains("12 query heads are not a multiple of 5"), "{error}");
}
