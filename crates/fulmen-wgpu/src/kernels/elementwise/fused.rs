//! A graph of element-wise ops as one kernel.

use super::{Broadcast, ElementwiseProgram, Input, source::source};
use crate::{
    kernel::{Access, Caps, Kernel, StorageBinding},
    kernels::{
        Binding, Elem, KernelError, LaunchList, Role,
        launch_list::{alignment, kernel_launch, padded, threads, window},
        preprocess::{render, values},
        storage::{Form, Lanes, declare, element},
    },
};

/// One kernel for a whole program over `len` elements, as one launch, or as one for each range of
/// elements that fits a binding. It reads each input once.
///
/// The launches bind [`Role::Input`] for the inputs that are read or replaced and [`Role::Output`] for
/// the outputs that replace none. `scalars` are the last words of the parameters and no part of the
/// text, so other values need no new kernel.
///
/// # Errors
/// [`KernelError::Invalid`] where the program is malformed, [`KernelError::TooManyBuffers`] where it
/// binds more buffers than the device can, [`KernelError::TooLarge`] where an input that repeats in
/// every row is larger than a binding, [`KernelError::TooMany`] where the elements or those of a row
/// are.
pub fn fused(
    program: &ElementwiseProgram,
    len: u64,
    scalars: &[f32],
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    program.check()?;
    let invalid = |reason: String| KernelError::Invalid { op: program.label(), reason };
    if scalars.len() != program.scalars {
        return Err(invalid(format!("takes {} scalars and has {}", program.scalars, scalars.len())));
    }
    if len > u64::MAX / 64 {
        return Err(KernelError::TooMany { op: program.label(), what: "the number of elements" });
    }
    let mut list = LaunchList::default();
    if len == 0 {
        return Ok(list);
    }
    let fused = FusedKernel::new(program, len, caps)?;
    let most = fused.elements_per_launch(caps)?;
    let mut start = 0;
    while start < len {
        let count = most.min(len - start);
        let (bindings, mut params) = fused.bind(start, count, caps);
        params.extend(scalars.iter().map(|scalar| scalar.to_bits()));
        let groups = count.div_ceil(4).div_ceil(fused.span());
        list.launches.push(kernel_launch(fused.kernel.clone(), params, groups, bindings, caps)?);
        start += count;
    }
    Ok(list)
}

/// A kernel, and what is needed to launch it.
struct FusedKernel {
    kernel: Kernel,
    /// The inputs that are bound, in order, with their broadcasts simplified.
    inputs: Vec<(usize, Input)>,
    /// The outputs that are bound, in order, after the inputs.
    outputs: Vec<(usize, Elem)>,
    threads: u32,
    len: u64,
}

impl FusedKernel {
    fn new(program: &ElementwiseProgram, len: u64, caps: &Caps) -> Result<Self, KernelError> {
        let text = source(program);
        let replaced = |i| program.outputs.iter().any(|output| output.replaces == Some(i));
        let inputs: Vec<(usize, Input)> = (0..program.inputs.len())
            .filter(|i| text.inputs.contains(i) || replaced(*i))
            .map(|i| {
                let Input { elem, broadcast } = program.inputs[i];
                (i, Input { elem, broadcast: broadcast.simplified(len) })
            })
            .collect();
        let outputs: Vec<(usize, Elem)> = (0..program.outputs.len())
            .filter(|&o| program.outputs[o].replaces.is_none())
            .map(|o| (o, program.outputs[o].elem))
            .collect();
        let needed = inputs.len() + outputs.len();
        if needed > caps.max_storage_buffers as usize {
            let limit = caps.max_storage_buffers;
            return Err(KernelError::TooManyBuffers { op: program.label(), needed, limit });
        }
        let threads = threads(256, caps);
        let label = program.label();

        let mut accessors = String::new();
        let mut bindings = Vec::new();
        let mut broadcast_inputs: Vec<usize> = Vec::new();
        for &(i, input) in &inputs {
            let mode = if replaced(i) { Access::ReadWrite } else { Access::Read };
            accessors += &input_buffer(&mut bindings, i, input, mode, caps);
            if let Broadcast::Row { .. } | Broadcast::Column { .. } = input.broadcast {
                broadcast_inputs.push(i);
            }
        }
        for &(o, elem) in &outputs {
            let (name, form) = (format!("out{o}"), elem.form(caps));
            accessors += &declare(&mut bindings, &name, form, Lanes::Four, Access::ReadWrite);
        }
        // Kernels have a handful of parameters.
        let words = 3 + 4 * broadcast_inputs.len() as u32 + program.scalars as u32;
        let mut elems = inputs.iter().map(|(_, input)| input.elem).chain(outputs.iter().map(|o| o.1));
        let output_names = program.outputs.iter().enumerate().map(|(o, output)| match output.replaces {
            Some(i) => format!("in{i}"),
            None => format!("out{o}"),
        });
        let wgsl = render(
            "elementwise/fused.wgsl",
            &values![
                threads,
                accessors,
                broadcast_inputs,
                f16: elems.any(|elem| elem.form(caps) == Form::F16),
                lanes: 4u32,
                scalars: program.scalars,
                functions: text.functions,
                call: call(&text.inputs, program.scalars),
                outputs: output_names.collect::<Vec<_>>(),
            ],
        );
        let kernel = Kernel { label: label.into(), wgsl, bindings, param_words: words };
        Ok(Self { kernel, inputs, outputs, threads, len })
    }

    /// Vectors per workgroup: one per thread. More per thread, with all loads issued first, is slower
    /// on an H200 (3.9 instead of 4.3 TB/s over 1 GiB).
    fn span(&self) -> u64 {
        u64::from(self.threads)
    }

    /// The largest range of elements whose bindings all fit.
    fn elements_per_launch(&self, caps: &Caps) -> Result<u64, KernelError> {
        let too_large = |what, bytes| {
            let op = self.kernel.label.to_string();
            KernelError::TooLarge { op, what, bytes, limit: caps.max_binding }
        };
        let full = self.inputs.iter().filter(|(_, input)| input.broadcast == Broadcast::Full);
        let elems = full.map(|(_, input)| input.elem).chain(self.outputs.iter().map(|o| o.1));
        let widest = elems.map(Elem::bytes).max().unwrap_or(4);
        for (_, input) in &self.inputs {
            let (Broadcast::Row { n } | Broadcast::Column { n }) = input.broadcast else { continue };
            let bytes = padded(n * input.elem.bytes());
            if bytes > caps.max_binding && input.broadcast == (Broadcast::Row { n }) {
                return Err(too_large("an input that repeats in every row", bytes));
            }
            // The kernel divides by it in 32 bits.
            if n > 1 << 30 {
                let what = "the number of elements in a row";
                return Err(KernelError::TooMany { op: self.kernel.label.to_string(), what });
            }
        }
        if padded(self.len * widest) <= caps.max_binding && self.len <= 1 << 31 {
            return Ok(self.len);
        }
        // Every range but the last begins and ends on aligned offsets in each type. The slack is for
        // the column inputs, whose windows begin early.
        let unit = alignment(caps) / 2;
        let most = (caps.max_binding.saturating_sub(alignment(caps)) / widest).min(1 << 31) / unit * unit;
        if most == 0 {
            return Err(too_large("the smallest range", unit * widest));
        }
        Ok(most)
    }

    /// The bindings of a range of elements, and the parameters but for the scalars.
    fn bind(&self, start: u64, count: u64, caps: &Caps) -> (Vec<Binding>, Vec<u32>) {
        // All are below 2^32: a binding has no more elements.
        let mut params = vec![(count / 4) as u32, count.div_ceil(4) as u32, (count % 4) as u32];
        let mut bindings = Vec::new();
        for &(i, Input { elem, broadcast }) in &self.inputs {
            let role = Role::Input(i);
            let size = elem.bytes();
            let (binding, _) = match broadcast {
                Broadcast::Full => window(role, start, count, size, caps),
                Broadcast::Scalar => window(role, 0, 1, size, caps),
                Broadcast::Row { n } => {
                    let unit = if n % 4 == 0 { 4 } else { 1 };
                    params.extend([(n / unit) as u32, (start % n / unit) as u32, 0, 0]);
                    window(role, 0, n, size, caps)
                }
                Broadcast::Column { n } => {
                    let unit = if n % 4 == 0 { 4 } else { 1 };
                    let (first, last) = (start / n, (start + count - 1) / n);
                    let (binding, early) = window(role, first, last - first + 1, size, caps);
                    let last = early + last - first;
                    params.extend([(n / unit) as u32, (start % n / unit) as u32, early as u32, last as u32]);
                    (binding, early)
                }
            };
            bindings.push(binding);
        }
        for &(o, elem) in &self.outputs {
            bindings.push(window(Role::Output(o), start, count, elem.bytes(), caps).0);
        }
        (bindings, params)
    }
}

/// Adds an input to the bindings, and returns `load_in<i>(i)`, which loads vector `i` of the range.
fn input_buffer(
    bindings: &mut Vec<StorageBinding>,
    i: usize,
    input: Input,
    mode: Access,
    caps: &Caps,
) -> String {
    let name = format!("in{i}");
    let form = input.elem.form(caps);
    let (broadcast, lanes) = match input.broadcast {
        Broadcast::Full => return declare(bindings, &name, form, Lanes::Four, mode),
        Broadcast::Scalar => ("scalar", Lanes::One),
        Broadcast::Row { n } if n % 4 == 0 => ("row4", Lanes::Four),
        Broadcast::Row { .. } => ("row", Lanes::One),
        Broadcast::Column { n } if n % 4 == 0 => ("column4", Lanes::One),
        Broadcast::Column { .. } => ("column", Lanes::One),
    };
    let values = values![broadcast, n: i, form: form.name()];
    bindings.push(StorageBinding::new(name, element(form, lanes), mode));
    render("elementwise/broadcast_loader.wgsl", &values)
}

/// The call of the generated function, with the inputs that it reads and all scalars.
fn call(inputs: &[usize], scalars: usize) -> String {
    let inputs = inputs.iter().map(|i| format!("load_in{i}(i)"));
    let args: Vec<String> = inputs.chain((0..scalars).map(|j| format!("params.s{j}"))).collect();
    format!("ew_program({})", args.join(", "))
}
