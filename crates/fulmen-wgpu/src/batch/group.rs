//! Fusion: which operations become one kernel.
//!
//! An element-wise value that only one kernel reads is computed inside that kernel and never stored. A matrix product that
//! only one element-wise kernel reads takes that kernel along as its epilogue; two products of one A that are
//! read together (a gate and an up projection) become one pair.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::value::{Op, Value, home};
use crate::kernel::Caps;
use crate::kernels::Elem;
use crate::kernels::elementwise::Broadcast;

/// Operations in one kernel at most: text grows with them, and with it the time to compile.
const MOST_MEMBERS: usize = 192;

/// What is run as one: one kernel, or the few launches that one operation needs.
#[derive(Debug, PartialEq)]
pub(super) struct Unit {
    /// The value that it makes.
    pub(super) root: u32,
    /// Element-wise operations in it, in order; the last one is the root. Empty for other operations.
    pub(super) members: Vec<u32>,
    /// Matrix products whose epilogue the members are.
    pub(super) products: Vec<u32>,
}

impl Unit {
    /// Values that it reads and does not make itself, in order, each once.
    pub(super) fn inputs(&self, values: &[Value]) -> Vec<u32> {
        let own: HashSet<u32> = self.members.iter().chain(&self.products).copied().collect();
        let mut seen = HashSet::new();
        let mut inputs = Vec::new();
        let roots = self.members.is_empty().then_some(self.root);
        for id in self.products.iter().chain(&self.members).copied().chain(roots) {
            for arg in values[id as usize].op().map(Op::args).unwrap_or_default() {
                if !own.contains(&arg) && seen.insert(arg) {
                    inputs.push(arg);
                }
            }
        }
        inputs
    }
}

/// The units that make `targets`, in the order in which they run. What `stored` holds is not made again.
pub(super) fn units(
    values: &[Value],
    targets: &[u32],
    stored: &dyn Fn(u32) -> bool,
    fuse: bool,
    caps: &Caps,
) -> Vec<Unit> {
    let readers = readers(values, targets, stored);
    let targets: HashSet<u32> = targets.iter().copied().collect();
    let most_inputs = (caps.max_storage_buffers as usize).saturating_sub(1).max(2);
    let mut roots: HashMap<u32, Cone> = HashMap::new();
    let mut root_of: HashMap<u32, u32> = HashMap::new();
    // Readers have larger numbers than what they read, so they are placed before it.
    for &id in readers.keys().rev() {
        let Some(op) = values[id as usize].op() else { continue };
        if !op.is_elementwise() {
            continue;
        }
        let host =
            if fuse && !targets.contains(&id) { host(values, id, &readers[&id], &root_of) } else { None };
        let joined = host.filter(|host| {
            let cone = roots.get_mut(host).expect("a host is a root");
            cone.join(id, op, most_inputs)
        });
        root_of.insert(id, joined.unwrap_or(id));
        if joined.is_none() {
            roots.insert(id, Cone::new(id, op));
        }
    }
    let mut units: Vec<Unit> = Vec::new();
    let mut taken: HashSet<u32> = HashSet::new();
    for &id in readers.keys().rev() {
        let Some(op) = values[id as usize].op() else { continue };
        if taken.contains(&id) || root_of.get(&id).is_some_and(|&root| root != id) {
            continue;
        }
        let mut unit = Unit { root: id, members: Vec::new(), products: Vec::new() };
        if op.is_elementwise() {
            unit.members =
                roots.remove(&id).map(|cone| cone.members.into_iter().collect()).unwrap_or_default();
            // What overwrites an input reads and writes one buffer, which the epilogue of a product cannot.
            if fuse && home(values, id).is_none() {
                unit.products = products(values, &unit, &readers, &targets, caps);
                taken.extend(&unit.products);
            }
        }
        units.push(unit);
    }
    units.reverse();
    units
}

/// For every value that is needed and not stored: who reads it.
fn readers(
    values: &[Value],
    targets: &[u32],
    stored: &dyn Fn(u32) -> bool,
) -> std::collections::BTreeMap<u32, Vec<u32>> {
    let mut readers: std::collections::BTreeMap<u32, Vec<u32>> = Default::default();
    let mut open: Vec<u32> = targets.iter().copied().filter(|&id| !stored(id)).collect();
    open.iter().for_each(|&id| drop(readers.insert(id, Vec::new())));
    let mut done = HashSet::new();
    while let Some(id) = open.pop() {
        if !done.insert(id) {
            continue;
        }
        for arg in values[id as usize].op().map(Op::args).unwrap_or_default() {
            if !stored(arg) {
                readers.entry(arg).or_default().push(id);
                open.push(arg);
            }
        }
    }
    readers
}

/// The one root whose members are all the readers of this value, element for element.
fn host(values: &[Value], id: u32, readers: &[u32], root_of: &HashMap<u32, u32>) -> Option<u32> {
    let root = *root_of.get(readers.first()?)?;
    let value = &values[id as usize];
    let fits = |reader: &u32| {
        let full = match values[*reader as usize].op() {
            Some(Op::Elementwise { args, .. }) => {
                args.iter().all(|&(arg, broadcast)| arg != id || broadcast == Broadcast::Full)
            }
            Some(Op::Cast { .. }) => true,
            _ => false,
        };
        full && root_of.get(reader) == Some(&root)
    };
    // A value that is stored in 16 bits is rounded there, and must be.
    let exact = value.elem == Elem::F32 && value.len == values[root as usize].len;
    (exact && readers.iter().all(fits)).then_some(root)
}

struct Cone {
    members: BTreeSet<u32>,
    inputs: HashSet<u32>,
}

impl Cone {
    fn new(id: u32, op: &Op) -> Cone {
        Cone { members: BTreeSet::from([id]), inputs: op.args().into_iter().collect() }
    }

    /// Takes in a value that its members read, unless the kernel would get too large.
    fn join(&mut self, id: u32, op: &Op, most_inputs: usize) -> bool {
        let new = op.args().into_iter().filter(|arg| !self.inputs.contains(arg)).collect::<HashSet<_>>();
        if self.members.len() >= MOST_MEMBERS || self.inputs.len() - 1 + new.len() > most_inputs {
            return false;
        }
        self.inputs.remove(&id);
        self.inputs.extend(new);
        self.members.insert(id);
        true
    }
}

/// The product, or the pair of products, whose epilogue a unit can be.
fn products(
    values: &[Value],
    unit: &Unit,
    readers: &std::collections::BTreeMap<u32, Vec<u32>>,
    targets: &HashSet<u32>,
    caps: &Caps,
) -> Vec<u32> {
    let root = &values[unit.root as usize];
    let members: HashSet<u32> = unit.members.iter().copied().collect();
    let candidates: Vec<u32> = unit
        .inputs(values)
        .into_iter()
        .filter(|id| {
            let only_here =
                readers.get(id).is_some_and(|all| all.iter().all(|reader| members.contains(reader)));
            let product = matches!(values[*id as usize].op(), Some(Op::Matmul { .. }));
            product && only_here && !targets.contains(id) && values[*id as usize].len == root.len
        })
        .collect();
    let shape = |id: u32| match values[id as usize].op() {
        Some(Op::Matmul { a, shape, .. }) => Some((*a, *shape)),
        _ => None,
    };
    // The epilogue's other inputs must lie as the product's columns do.
    let Some(&last) = candidates.last() else { return Vec::new() };
    let Some((_, last_shape)) = shape(last) else { return Vec::new() };
    let lies_well = |&(arg, broadcast): &(u32, Broadcast)| {
        let columns = u64::from(last_shape.n);
        let f32 = values[arg as usize].elem == Elem::F32;
        f32 && match broadcast {
            Broadcast::Full => true,
            Broadcast::Row { n } | Broadcast::Column { n } => n == columns,
            Broadcast::Scalar => false,
        }
    };
    let fits = unit.members.iter().all(|&id| match values[id as usize].op() {
        Some(Op::Elementwise { args, .. }) => args.iter().all(lies_well),
        _ => false,
    });
    // A, B, B of a pair, the output.
    let bindings = unit.inputs(values).len() + 4;
    if !fits || root.elem != Elem::F32 || root.len == 0 || bindings > caps.max_storage_buffers as usize {
        return Vec::new();
    }
    let whole = |id: u32| {
        values[id as usize].op().is_some_and(|op| match op {
            Op::Matmul { b, .. } => values[*b as usize].bytes() <= caps.max_binding,
            _ => false,
        })
    };
    if let [first, second] = candidates[..]
        && shape(first) == shape(second)
        && whole(first)
        && whole(second)
    {
        return vec![first, second];
    }
    vec![last]
}
