//! A program as one kernel.

use super::{Broadcast, ElementwiseProgram, Input, source::source};
use crate::{
    kernel::{Access, Caps, Kernel, StorageBinding},
    kernels::{
        Binding, Elem, KernelError, Plan, Role,
        plan::{alignment, padded, step, threads, window},
        storage::{Form, Lanes, declare, element, enable},
        template::expand,
    },
};

/// One kernel for a whole program over `len` elements, as one launch, or as one for each range of elements that fits a
/// binding. It reads each input once.
///
/// The launches bind [`Role::Input`] for the inputs that are read or replaced and [`Role::Output`] for the outputs that
/// replace none. `scalars` are the last words of the parameters and no part of the text, so other values need no new
/// kernel.
///
/// # Errors
/// [`KernelError::Invalid`] where the program is malformed, [`KernelError::TooManyBuffers`] where it binds more
/// buffers than the device can, [`KernelError::TooLarge`] where an input that repeats in every row is larger than a
/// binding, [`KernelError::TooMany`] where the elements or those of a row are.
pub fn fused(
    program: &ElementwiseProgram,
    len: u64,
    scalars: &[f32],
    caps: &Caps,
) -> Result<Plan, KernelError> {
    program.check()?;
    let invalid = |reason: String| KernelError::Invalid { op: program.label(), reason };
    if scalars.len() != program.scalars {
        return Err(invalid(format!("takes {} scalars and has {}", program.scalars, scalars.len())));
    }
    if len > u64::MAX / 64 {
        return Err(KernelError::TooMany { op: program.label(), what: "the number of elements" });
    }
    let mut plan = Plan::default();
    if len == 0 {
        return Ok(plan);
    }
    let fused = Fused::new(program, len, caps)?;
    let most = fused.elements_per_launch(caps)?;
    let mut start = 0;
    while start < len {
        let count = most.min(len - start);
        let (bindings, mut params) = fused.bind(start, count, caps);
        params.extend(scalars.iter().map(|scalar| scalar.to_bits()));
        let groups = count.div_ceil(4).div_ceil(fused.span());
        plan.steps.push(step(fused.kernel.clone(), params, groups, bindings, caps)?);
        start += count;
    }
    Ok(plan)
}

/// A kernel, and what is needed to launch it.
struct Fused {
    kernel: Kernel,
    /// The inputs that are bound, in order, with their broadcasts simplified.
    inputs: Vec<(usize, Input)>,
    /// The outputs that are bound, in order, after the inputs.
    outputs: Vec<(usize, Elem)>,
    threads: u32,
    len: u64,
}

impl Fused {
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

        let mut params = String::new();
        let mut words = 3;
        let mut buffers = String::new();
        let mut bindings = Vec::new();
        for &(i, input) in &inputs {
            let mode = if replaced(i) { Access::ReadWrite } else { Access::Read };
            buffers += &input_buffer(&mut bindings, i, input, mode, caps);
            if let Broadcast::Row { .. } | Broadcast::Column { .. } = input.broadcast {
                params += &format!("    n{i}: u32,\n    at{i}: u32,\n    row{i}: u32,\n    last{i}: u32,\n");
                words += 4;
            }
        }
        for &(o, elem) in &outputs {
            let form = elem.form(caps);
            buffers += &declare(&mut bindings, &format!("out{o}"), form, Lanes::Four, Access::ReadWrite);
        }
        for j in 0..program.scalars {
            params += &format!("    s{j}: f32,\n");
        }
        words += program.scalars as u32;

        let forms: Vec<Form> = inputs
            .iter()
            .map(|(_, input)| input.elem)
            .chain(outputs.iter().map(|o| o.1))
            .map(|e| e.form(caps))
            .collect();
        let names = Names::new(program, &text.inputs);
        let wgsl = expand(
            include_str!("fused.wgsl"),
            &[
                ("enable", enable(&forms)),
                ("label", &label),
                ("params", &params),
                ("aliases", Lanes::Four.aliases()),
                ("buffers", &buffers),
                ("functions", &text.functions),
                ("program", &names.program(|i| format!("load_in{i}(i)"))),
                ("stores", &names.stores("        ", "store", "i", "r", "")),
                ("part_stores", &names.stores("        ", "store_part", "i", "r", ", params.rest")),
                ("threads", &threads.to_string()),
            ],
        );
        let kernel = Kernel { label: label.into(), wgsl, bindings, param_words: words };
        Ok(Self { kernel, inputs, outputs, threads, len })
    }

    /// Vectors that a workgroup makes: one for each thread. More of them, with their loads issued first, were slower on
    /// an H200 (3.9 instead of 4.3 TB/s over 1 GiB).
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
        // Every range but the last begins and ends on aligned offsets in each type. The slack is for the column
        // inputs, whose windows begin early.
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

/// The declaration of an input, and `load_in<i>(i)` of the vector `i` of the range.
fn input_buffer(
    bindings: &mut Vec<StorageBinding>,
    i: usize,
    input: Input,
    mode: Access,
    caps: &Caps,
) -> String {
    let name = format!("in{i}");
    let form = input.elem.form(caps);
    let one = match form {
        Form::F32 | Form::F16 => format!("fn one_{name}(i: u32) -> f32 {{ return f32({name}[i]); }}\n"),
        Form::PackedF16 => format!(
            "fn one_{name}(i: u32) -> f32 {{\n    let w = unpack2x16float({name}[i >> 1u]);\n    \
             return select(w.x, w.y, (i & 1u) == 1u);\n}}\n"
        ),
    };
    let body = match input.broadcast {
        Broadcast::Full => return declare(bindings, &name, form, Lanes::Four, mode),
        Broadcast::Row { n } if n % 4 == 0 => {
            let vector = match form {
                Form::F32 | Form::F16 => format!("EwF({name}[k])"),
                Form::PackedF16 => format!("EwF(unpack2x16float({name}[k].x), unpack2x16float({name}[k].y))"),
            };
            bindings.push(StorageBinding::new(name.clone(), element(form, Lanes::Four), mode));
            let load = format!("    let k = (i + params.at{i}) % params.n{i};\n    return {vector};\n");
            return format!("fn load_{name}(i: u32) -> EwF {{\n{load}}}\n");
        }
        Broadcast::Scalar => format!("    return EwF(one_{name}(0u));\n"),
        Broadcast::Row { .. } => format!(
            "    let n = params.n{i};\n    let a = (i * 4u + params.at{i}) % n;\n    \
             let b = select(a + 1u, 0u, a + 1u == n);\n    let c = select(b + 1u, 0u, b + 1u == n);\n    \
             let d = select(c + 1u, 0u, c + 1u == n);\n    \
             return EwF(one_{name}(a), one_{name}(b), one_{name}(c), one_{name}(d));\n"
        ),
        Broadcast::Column { n } if n % 4 == 0 => {
            format!("    return EwF(one_{name}(params.row{i} + (i + params.at{i}) / params.n{i}));\n")
        }
        // Lanes past the end of the range must not leave the buffer.
        Broadcast::Column { .. } => format!(
            "    let k = EwU(i * 4u + params.at{i}) + EwU(0u, 1u, 2u, 3u);\n    \
             let at = min(EwU(params.row{i}) + k / params.n{i}, EwU(params.last{i}));\n    \
             return EwF(one_{name}(at.x), one_{name}(at.y), one_{name}(at.z), one_{name}(at.w));\n"
        ),
    };
    let text = format!("{one}fn load_{name}(i: u32) -> EwF {{\n{body}}}\n");
    bindings.push(StorageBinding::new(name, element(form, Lanes::One), mode));
    text
}

/// What the kernel's body calls things.
struct Names<'a> {
    read: &'a [usize],
    scalars: usize,
    /// The buffer of each output.
    outputs: Vec<String>,
}

impl<'a> Names<'a> {
    fn new(program: &ElementwiseProgram, read: &'a [usize]) -> Self {
        let outputs = program.outputs.iter().enumerate().map(|(o, output)| match output.replaces {
            Some(i) => format!("in{i}"),
            None => format!("out{o}"),
        });
        Self { read, scalars: program.scalars, outputs: outputs.collect() }
    }

    /// The call of the program.
    fn program(&self, value: impl Fn(usize) -> String) -> String {
        let args: Vec<String> = self
            .read
            .iter()
            .map(|&i| value(i))
            .chain((0..self.scalars).map(|j| format!("params.s{j}")))
            .collect();
        format!("ew_program({})", args.join(", "))
    }

    /// The stores of the result `r` at `at`.
    fn stores(&self, indent: &str, function: &str, at: &str, r: &str, more: &str) -> String {
        let one = self.outputs.len() == 1;
        let stores = self.outputs.iter().enumerate().map(|(o, name)| {
            let value = if one { r.to_owned() } else { format!("{r}.o{o}") };
            format!("{indent}{function}_{name}({at}, {value}{more});\n")
        });
        stores.collect()
    }
}
