//! The hooks that a backend may override: capture and replay of programs, repacked weights.

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::*;

/// A backend with element-wise sums in host memory only. Captures programs if configured to.
#[derive(Default)]
struct Toy {
    captures: bool,
    memory: HashMap<u64, Vec<u8>>,
    programs: HashMap<ReplayId, Program>,
    weights: Vec<(DType, u32, u32)>,
    dispatched: usize,
    replayed: usize,
}

fn no<T>() -> Result<T, BackendError> {
    Err(BackendError::Unsupported { backend: "toy", what: "this".to_owned() })
}

impl KernelDispatch for Toy {
    fn backend(&self) -> &'static str {
        "toy"
    }
    fn dispatch_add(&mut self, call: &BinaryCall) -> Result<usize, BackendError> {
        let floats = |ptr| bytemuck::pod_collect_to_vec::<u8, f32>(&self.memory[&ptr]);
        let sum: Vec<f32> = floats(call.a).iter().zip(floats(call.b)).map(|(a, b)| a + b).collect();
        self.memory.insert(call.output, bytemuck::cast_slice(&sum).to_vec());
        self.dispatched += 1;
        Ok(1)
    }
    fn dispatch_mul_mat(&mut self, _: &MulMatCall) -> Result<usize, BackendError> {
        no()
    }
    fn dispatch_rms_norm(&mut self, _: &RmsNormCall) -> Result<usize, BackendError> {
        no()
    }
    fn dispatch_rope(&mut self, _: &RopeCall) -> Result<usize, BackendError> {
        no()
    }
    fn dispatch_attention(&mut self, _: &AttentionCall) -> Result<usize, BackendError> {
        no()
    }
    fn dispatch_copy(&mut self, _: &CopyCall) -> Result<usize, BackendError> {
        no()
    }
    fn dispatch_mul(&mut self, _: &BinaryCall) -> Result<usize, BackendError> {
        no()
    }
    fn dispatch_silu(&mut self, _: &UnaryCall) -> Result<usize, BackendError> {
        no()
    }
    fn prepare(&mut self, program: &Program) -> Result<Option<ReplayId>, BackendError> {
        if !self.captures {
            return Ok(None);
        }
        let id = ReplayId(self.programs.len() as u64);
        self.programs.insert(id, program.clone());
        Ok(Some(id))
    }
    fn replay(&mut self, id: ReplayId) -> Result<usize, BackendError> {
        let Some(program) = self.programs.get(&id).cloned() else { return no() };
        for step in program.calls() {
            self.dispatch(&step.call)?;
        }
        self.replayed += 1;
        Ok(1)
    }
    fn release(&mut self, id: ReplayId) {
        self.programs.remove(&id);
    }
}

impl DeviceMemory for Toy {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        let ptr = 0x1000 * (self.memory.len() as u64 + 1);
        self.memory.insert(ptr, vec![0; bytes]);
        Ok(ptr)
    }
    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.memory.remove(&ptr);
        Ok(())
    }
    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.memory.insert(ptr, data.to_vec());
        Ok(())
    }
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        Ok(ReadTicket::ready(self.memory[&ptr][..bytes].to_vec()))
    }
    fn import_weight(
        &mut self,
        bytes: SharedBytes,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Result<u64, BackendError> {
        self.weights.push((dtype, rows, width));
        self.import(bytes)
    }
}

fn program(toy: &mut Toy) -> (Program, u64) {
    let [a, b, y] = [0; 3].map(|_| toy.alloc(8).unwrap());
    toy.write(a, bytemuck::bytes_of(&[1.0f32, 2.0])).unwrap();
    toy.write(b, bytemuck::bytes_of(&[10.0f32, 20.0])).unwrap();
    let mut graph = ComputeGraph::new();
    let (a, b) = (graph.add_leaf(a, [2, 1, 1, 0]), graph.add_leaf(b, [2, 1, 1, 0]));
    graph.add_op(TensorOp::Add, y, [2, 1, 1, 0], vec![a, b], OpParams::default());
    (graph.check().unwrap(), y)
}

#[test]
fn prepare_returns_none_without_capture() {
    let mut toy = Toy::default();
    let (program, _) = program(&mut toy);
    assert_eq!(toy.prepare(&program).unwrap(), None);
    assert_eq!(toy.dispatched, 0, "preparing runs nothing");
    let error = toy.replay(ReplayId(3)).unwrap_err();
    assert!(matches!(error, BackendError::Unsupported { backend: "toy", .. }), "{error}");
    toy.release(ReplayId(3));
}

#[test]
fn a_replay_gives_the_results_of_a_run() {
    let mut toy = Toy { captures: true, ..Toy::default() };
    let (program, y) = program(&mut toy);
    let id = toy.prepare(&program).unwrap().expect("it captures");
    for step in 1..4 {
        toy.write(y, &[0; 8]).unwrap();
        assert_eq!(toy.replay(id).unwrap(), 1);
        let mut out = [0f32; 2];
        toy.read(y, bytemuck::cast_slice_mut(&mut out)).unwrap();
        assert_eq!((out, toy.replayed, toy.dispatched), ([11.0, 22.0], step, step));
    }
    toy.release(id);
    assert!(toy.replay(id).is_err());
}

/// Keeps the defaults of every hook.
struct Plain(Toy);

impl DeviceMemory for Plain {
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

#[test]
fn a_weight_is_imported_with_its_type_and_shape() {
    let bytes: SharedBytes = Arc::new((0..68).collect::<Vec<u8>>());
    let mut toy = Toy::default();
    toy.import_weight(bytes.clone(), DType::Q8_0, 2, 32).unwrap();
    assert_eq!(toy.weights, [(DType::Q8_0, 2, 32)]);
    // By default it is an import like any other, and nothing is known of the memory that is left.
    let mut plain = Plain(Toy::default());
    let ptr = plain.import_weight(bytes.clone(), DType::Q8_0, 2, 32).unwrap();
    let mut out = [0; 68];
    plain.read(ptr, &mut out).unwrap();
    assert_eq!(out[..], (*bytes).as_ref()[..]);
    assert_eq!(plain.available_bytes(), None);
}
