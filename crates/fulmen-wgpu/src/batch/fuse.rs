//! Fusion: which operations become one kernel.
//!
//! An element-wise value that only one kernel reads is computed inside that kernel and never stored. A
//! matmul whose only reader is an element-wise kernel gets that kernel as its epilogue; two matmuls of
//! the same A that are read together (gate and up projection) become one pair.

use std::collections::{BTreeSet, HashMap, HashSet};

use fulmen_core::dataflow::Readers;

use super::value::{Op, Value, alias_root};
use crate::kernel::Caps;
use crate::kernels::Elem;
use crate::kernels::elementwise::Broadcast;

/// The most operations in one kernel: compile time grows with them.
const MAX_MEMBERS: usize = 192;

/// Operations that run together: one kernel, or the few launches that one operation needs.
#[derive(Debug, PartialEq)]
pub(super) struct FusionGroup {
    /// The value that it computes.
    pub(super) root: u32,
    /// Its element-wise operations, in order; the last one is the root. Empty for other operations.
    pub(super) members: Vec<u32>,
    /// Matmuls whose epilogue the members are.
    pub(super) matmuls: Vec<u32>,
}

impl FusionGroup {
    /// Values that it reads and does not compute itself, in order, each once.
    pub(super) fn inputs(&self, values: &[Value]) -> Vec<u32> {
        let own: HashSet<u32> = self.members.iter().chain(&self.matmuls).copied().collect();
        let mut seen = HashSet::new();
        let mut inputs = Vec::new();
        let roots = self.members.is_empty().then_some(self.root);
        for id in self.matmuls.iter().chain(&self.members).copied().chain(roots) {
            for arg in values[id as usize].op().map(Op::args).unwrap_or_default() {
                if !own.contains(&arg) && seen.insert(arg) {
                    inputs.push(arg);
                }
            }
        }
        inputs
    }
}

/// The groups that compute `targets`, in execution order. Values that are `stored` are not recomputed.
pub(super) fn fusion_groups(
    values: &[Value],
    targets: &[u32],
    stored: &dyn Fn(u32) -> bool,
    fuse: bool,
    caps: &Caps,
) -> Vec<FusionGroup> {
    let readers = readers(values, targets, stored);
    let max_inputs = (caps.max_storage_buffers as usize).saturating_sub(1).max(2);
    let mut roots: HashMap<u32, GroupDraft> = HashMap::new();
    let mut root_of: HashMap<u32, u32> = HashMap::new();
    // Readers have higher ids than what they read, so they are assigned to groups first.
    for id in readers.needed().rev().map(|id| id as u32) {
        let Some(op) = values[id as usize].op() else { continue };
        if !op.is_elementwise() {
            continue;
        }
        let host = if fuse { host(values, id, &readers, &root_of) } else { None };
        let joined = host.filter(|host| {
            let draft = roots.get_mut(host).expect("a host is a root");
            draft.join(id, op, max_inputs)
        });
        root_of.insert(id, joined.unwrap_or(id));
        if joined.is_none() {
            roots.insert(id, GroupDraft::new(id, op));
        }
    }
    let mut groups: Vec<FusionGroup> = Vec::new();
    let mut taken: HashSet<u32> = HashSet::new();
    for id in readers.needed().rev().map(|id| id as u32) {
        let Some(op) = values[id as usize].op() else { continue };
        if taken.contains(&id) || root_of.get(&id).is_some_and(|&root| root != id) {
            continue;
        }
        let mut group = FusionGroup { root: id, members: Vec::new(), matmuls: Vec::new() };
        if op.is_elementwise() {
            group.members =
                roots.remove(&id).map(|draft| draft.members.into_iter().collect()).unwrap_or_default();
            // A group that overwrites an input reads and writes one buffer, which a matmul epilogue cannot.
            if fuse && alias_root(values, id).is_none() {
                group.matmuls = matmuls_to_end(values, &group, &readers, caps);
                taken.extend(&group.matmuls);
            }
        }
        groups.push(group);
    }
    groups.reverse();
    groups
}

/// For every value that is needed and not stored: its readers. The targets are kept.
fn readers(values: &[Value], targets: &[u32], stored: &dyn Fn(u32) -> bool) -> Readers {
    let mut readers = Readers::new(values.len());
    let mut open: Vec<u32> = targets.iter().copied().filter(|&id| !stored(id)).collect();
    open.iter().for_each(|&id| readers.keep(id as usize));
    let mut done = HashSet::new();
    while let Some(id) = open.pop() {
        if !done.insert(id) {
            continue;
        }
        for arg in values[id as usize].op().map(Op::args).unwrap_or_default() {
            if !stored(arg) {
                readers.read(arg as usize, id as usize);
                open.push(arg);
            }
        }
    }
    readers
}

/// The root of the one group that contains all readers of this value, if they read it element by element.
fn host(values: &[Value], id: u32, readers: &Readers, root_of: &HashMap<u32, u32>) -> Option<u32> {
    let root = *root_of.get(&(*readers.of(id as usize).first()? as u32))?;
    let value = &values[id as usize];
    let fits = |reader: &usize| {
        let full = match values[*reader].op() {
            Some(Op::Elementwise { args, .. }) => {
                args.iter().all(|&(arg, broadcast)| arg != id || broadcast == Broadcast::Full)
            }
            Some(Op::Cast { .. }) => true,
            _ => false,
        };
        full && root_of.get(&(*reader as u32)) == Some(&root)
    };
    // An f16 value is rounded when it is stored, so it cannot be fused away.
    let exact = value.elem == Elem::F32 && value.len == values[root as usize].len;
    (exact && readers.only_by(id as usize, fits)).then_some(root)
}

/// An element-wise group under construction.
struct GroupDraft {
    members: BTreeSet<u32>,
    inputs: HashSet<u32>,
}

impl GroupDraft {
    fn new(id: u32, op: &Op) -> GroupDraft {
        GroupDraft { members: BTreeSet::from([id]), inputs: op.args().into_iter().collect() }
    }

    /// Adds a value that its members read, unless the kernel would get too large.
    fn join(&mut self, id: u32, op: &Op, max_inputs: usize) -> bool {
        let new = op.args().into_iter().filter(|arg| !self.inputs.contains(arg)).collect::<HashSet<_>>();
        if self.members.len() >= MAX_MEMBERS || self.inputs.len() - 1 + new.len() > max_inputs {
            return false;
        }
        self.inputs.remove(&id);
        self.inputs.extend(new);
        self.members.insert(id);
        true
    }
}

/// The matmul, or pair of matmuls, whose epilogue a group can be.
fn matmuls_to_end(values: &[Value], group: &FusionGroup, readers: &Readers, caps: &Caps) -> Vec<u32> {
    let root = &values[group.root as usize];
    let members: HashSet<u32> = group.members.iter().copied().collect();
    let candidates: Vec<u32> = group
        .inputs(values)
        .into_iter()
        .filter(|id| {
            let only_here = readers.only_by(*id as usize, |&reader| members.contains(&(reader as u32)));
            let is_matmul = matches!(values[*id as usize].op(), Some(Op::Matmul { .. }));
            is_matmul && only_here && values[*id as usize].len == root.len
        })
        .collect();
    let shape = |id: u32| match values[id as usize].op() {
        Some(Op::Matmul { a, shape, .. }) => Some((*a, *shape)),
        _ => None,
    };
    // The epilogue's other inputs must be laid out like the matmul's columns.
    let Some(&last) = candidates.last() else { return Vec::new() };
    let Some((_, last_shape)) = shape(last) else { return Vec::new() };
    let layout_fits = |&(arg, broadcast): &(u32, Broadcast)| {
        let columns = u64::from(last_shape.n);
        let f32 = values[arg as usize].elem == Elem::F32;
        f32 && match broadcast {
            Broadcast::Full => true,
            Broadcast::Row { n } | Broadcast::Column { n } => n == columns,
            Broadcast::Scalar => false,
        }
    };
    let fits = group.members.iter().all(|&id| match values[id as usize].op() {
        Some(Op::Elementwise { args, .. }) => args.iter().all(layout_fits),
        _ => false,
    });
    // A, B, B of a pair, the output.
    let bindings = group.inputs(values).len() + 4;
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
