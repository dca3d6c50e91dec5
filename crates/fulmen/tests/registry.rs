//! Backends of a program's own beside the built-in ones.

use std::collections::BTreeMap;

use fulmen::core::device::{BackendName, BackendReport, DeviceInfo, DeviceKind, DeviceSelector};
use fulmen::core::{AttentionCall, MulMatCall, ReadTicket, RmsNormCall, RopeCall};
use fulmen::core::{BackendError, BinaryCall, CopyCall, DeviceMemory, KernelDispatch, UnaryCall};
use fulmen::model::Device;
use fulmen::prelude::*;
use fulmen::{BackendProvider, OpenError, OpenOptions, RegisterError, Registry, SelectError};

/// A backend that adds, and nothing else, in memory of its own.
#[derive(Default)]
struct Adder {
    buffers: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Adder {
    fn range(&mut self, ptr: u64, len: usize) -> &mut [u8] {
        let (start, bytes) = self.buffers.range_mut(..=ptr).next_back().expect("a live address");
        let at = (ptr - start) as usize;
        &mut bytes[at..at + len]
    }

    fn floats(&mut self, ptr: u64, n: usize) -> Vec<f32> {
        self.range(ptr, n * 4).chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
    }
}

type Launched = Result<usize, BackendError>;

fn unsupported(op: &'static str) -> Launched {
    Err(BackendError::Unsupported { backend: "adder", what: op.to_owned() })
}

impl KernelDispatch for Adder {
    fn backend(&self) -> &'static str {
        "adder"
    }
    fn dispatch_add(&mut self, call: &BinaryCall) -> Launched {
        let n = call.n_elements as usize;
        let (a, b) = (self.floats(call.a, n), self.floats(call.b, n));
        let sum: Vec<u8> = a.iter().zip(&b).flat_map(|(a, b)| (a + b).to_ne_bytes()).collect();
        self.range(call.output, n * 4).copy_from_slice(&sum);
        Ok(1)
    }
    fn dispatch_mul_mat(&mut self, _: &MulMatCall) -> Launched {
        unsupported("mul_mat")
    }
    fn dispatch_rms_norm(&mut self, _: &RmsNormCall) -> Launched {
        unsupported("rms_norm")
    }
    fn dispatch_rope(&mut self, _: &RopeCall) -> Launched {
        unsupported("rope")
    }
    fn dispatch_attention(&mut self, _: &AttentionCall) -> Launched {
        unsupported("attention")
    }
    fn dispatch_mul(&mut self, _: &BinaryCall) -> Launched {
        unsupported("mul")
    }
    fn dispatch_silu(&mut self, _: &UnaryCall) -> Launched {
        unsupported("silu")
    }
    fn dispatch_copy(&mut self, _: &CopyCall) -> Launched {
        unsupported("copy")
    }
}

impl DeviceMemory for Adder {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.next += 256;
        let ptr = self.next;
        self.next += (bytes as u64).next_multiple_of(256);
        self.buffers.insert(ptr, vec![0; bytes]);
        Ok(ptr)
    }
    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.buffers.remove(&ptr);
        Ok(())
    }
    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.range(ptr, data.len()).copy_from_slice(data);
        Ok(())
    }
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        Ok(ReadTicket::ready(self.range(ptr, bytes).to_vec()))
    }
}

/// Two devices of the backend above, of which the second does not open.
struct Adders {
    rank: u32,
}

const ADDER: BackendName = BackendName::new("adder");

impl BackendProvider for Adders {
    fn name(&self) -> BackendName {
        ADDER
    }

    fn report(&self) -> BackendReport {
        let device = |index| DeviceInfo {
            backend: ADDER,
            index,
            name: format!("abacus {index}"),
            kind: DeviceKind::Other,
            driver: String::new(),
            memory_bytes: None,
            free_bytes: None,
            facts: Vec::new(),
            runs_graphs: Ok(()),
        };
        BackendReport { backend: ADDER, devices: vec![device(0), device(1)], unavailable: None }
    }

    fn rank(&self, _: &DeviceInfo) -> u32 {
        self.rank
    }

    fn open(&self, device: &DeviceInfo, _: &OpenOptions) -> Result<Device, OpenError> {
        if device.index == 1 { Err("a bead is missing".into()) } else { Ok(Box::new(Adder::default())) }
    }
}

fn with_adders(rank: u32) -> Registry {
    let mut registry = Registry::builtin();
    registry.register(Adders { rank }).unwrap();
    registry
}

#[test]
fn a_registered_backend_is_selected_by_name_and_runs_graphs() {
    let registry = with_adders(1000);
    let (info, mut device) =
        registry.open_with(registry.parse("adder").unwrap(), &OpenOptions::default()).unwrap();
    assert_eq!((info.name.as_str(), info.selector().to_string().as_str()), ("abacus 0", "adder:0"));

    let mut b = GraphBuilder::new();
    let (x, y) = (b.input("x", 1, 3).unwrap(), b.input("y", 1, 3).unwrap());
    let sum = b.add(x, y).unwrap();
    b.output("sum", sum).unwrap();
    let plan = b.finish().plan(&PlanOptions::default()).unwrap();
    let graph = plan.bind(device.as_mut(), &Bindings::new()).unwrap();
    graph.write_f32(device.as_mut(), "x", &[1.0, 2.0, 3.0]).unwrap();
    graph.write_f32(device.as_mut(), "y", &[0.5, 0.25, -3.0]).unwrap();
    graph.run(device.as_mut()).unwrap();
    assert_eq!(graph.read_f32(device.as_mut(), "sum").unwrap(), [1.5, 2.25, 0.0]);
}

#[test]
fn the_rank_decides_what_auto_selects() {
    let taken = |rank| {
        let registry = with_adders(rank);
        let reports = registry.reports();
        registry.choose(&reports, DeviceSelector::Auto).unwrap().backend
    };
    assert_eq!(taken(0), ADDER);
    assert_ne!(taken(1000), ADDER);
}

#[test]
fn a_device_that_does_not_open_says_why() {
    let registry = with_adders(0);
    let refused = |asked: &str| registry.open(registry.parse(asked).unwrap()).err().unwrap().to_string();
    assert_eq!(refused("adder:1"), "device adder:1 cannot be used: a bead is missing");
    assert_eq!(
        refused("adder:2"),
        "device adder:2 does not exist; devices of adder: 2, the first is adder:0"
    );
}

#[test]
fn unknown_names_are_refused_with_those_that_there_are() {
    let registry = with_adders(0);
    for text in ["gpu", "adders", "adder:x", "", "ADDER", "cpu:", "\u{1b}[31m"] {
        let error = registry.parse(text).unwrap_err();
        assert!(matches!(error, SelectError::Unknown { .. }), "{text}: {error}");
        let message = error.to_string();
        assert!(message.starts_with(&format!("unknown device {text:?}; use auto, adder, cpu")), "{message}");
    }
    // Also without `parse`.
    let error = registry.open("gpu:1".parse().unwrap()).err().unwrap();
    assert!(error.to_string().starts_with("unknown device \"gpu:1\"; use auto"), "{error}");
    let error = Registry::empty().parse("adder").unwrap_err();
    assert_eq!(error.to_string(), "unknown device \"adder\"; use auto (this program has no backend)");
}

#[test]
fn a_name_is_registered_once() {
    let mut registry = with_adders(0);
    assert_eq!(registry.register(Adders { rank: 1 }), Err(RegisterError { name: ADDER }));
    assert_eq!(registry.names().iter().filter(|name| **name == ADDER).count(), 1);
}

#[test]
fn an_empty_registry_has_nothing() {
    let registry = Registry::empty();
    assert_eq!(registry.open(DeviceSelector::Auto).err(), Some(SelectError::Nothing));
    assert!(registry.reports().is_empty());
}

#[test]
fn a_backend_that_was_left_out_says_which_feature_it_needs() {
    let registry = Registry::builtin();
    for (name, built) in [("wgpu", cfg!(feature = "wgpu")), ("cuda", cfg!(feature = "cuda"))] {
        match registry.parse(name) {
            Ok(_) => assert!(built, "{name}"),
            Err(error) => {
                assert!(!built, "{name}: {error}");
                let message = error.to_string();
                let expected =
                    format!("built without the backend {name} (cargo feature \"{name}\"); it has: ");
                assert!(message.contains(&expected), "{message}");
            }
        }
    }
}
