//! Few rows of A against several weights in one launch: Q, K and V of a layer, or gate and up with what joins them.
//!
//! A launch costs a device some microseconds whatever it does, and small weights fill no device by themselves. The
//! workgroups of all weights are put in one grid; each weight has its own functions, so the formats may differ.

use super::choose::{few, few_as_items};
use super::format::Format;
use super::rows::{Rows, Team, Values};
use super::{QuantError, QuantWeight, quantize};
use crate::kernel::{Access, Caps, Kernel, Launch, fold_grid};
use crate::kernels::matmul::rows_nk::{text_rows, tree};
use crate::kernels::{matmul::text::lines, template::expand};

/// Weights whose products make one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// One weight, or two of one shape: then the output is `silu(first) · second`.
    pub weights: Vec<QuantWeight>,
    /// A float for each row of the weight is added.
    pub bias: bool,
}

/// What reads the output of a pair of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing that is known.
    None,
    /// A product: the launch makes the codes that it takes, if it can. They are those that a launch of their own would make.
    Codes,
}

/// What the launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JointRole {
    /// A as codes, as [`quantize_a`](super::quantize_a) makes them.
    Codes,
    /// The output of the only section as codes, [`codes_bytes`](super::codes_bytes) long.
    NextCodes,
    /// A weight: the section, and its number there.
    Weight(usize, usize),
    /// The floats that are added, of a section.
    Bias(usize),
    /// The output of a section, `[m, n]`.
    Out(usize),
}

/// The launch of `m` rows of A, as codes, by all weights, and what it binds; `None` where that is not one launch: for many
/// rows, or more buffers than the device binds.
///
/// # Errors
/// Where there are no kernels for a weight.
pub fn joint(
    m: u32,
    sections: &[Section],
    next: Next,
    caps: &Caps,
) -> Result<Option<(Launch, Vec<JointRole>)>, QuantError> {
    let Some(first) = sections.first().and_then(|section| section.weights.first()) else { return Ok(None) };
    let all = || sections.iter().flat_map(|section| &section.weights);
    let n: u32 = all().fold(0, |sum, weight| sum.saturating_add(weight.n));
    let codes = next == Next::Codes && makes_codes(sections);
    let buffers = 1
        + usize::from(codes)
        + sections.iter().map(|s| s.weights.len() + 1 + usize::from(s.bias)).sum::<usize>();
    let (k, most) = (first.k, caps.max_storage_buffers as usize);
    let fitting = |section: &Section| match &*section.weights {
        [one] => one.k == k,
        [a, b] => a.k == k && (b.n, b.k) == (a.n, k),
        _ => false,
    };
    let formats = all().map(|weight| Format::of(*weight)).collect::<Result<Vec<_>, _>>()?;
    let bytes = |weight: &QuantWeight| weight.packed_bytes().is_ok_and(|bytes| bytes <= caps.max_binding);
    if m == 0 || m > 8 || buffers > most || !sections.iter().all(fitting) || !all().all(bytes) {
        return Ok(None);
    }
    let rows = match codes {
        true => few_as_items(m, first.n, caps),
        false => Rows { rows: 1, ..few(m, QuantWeight { n, ..*first }, Values::Int8, caps) },
    };
    let text = Text { rows, m: text_rows(m), codes };
    Ok(text.launch(m, k, sections, &formats, caps))
}

/// Whether the output can be made as codes: one pair of weights, and rows of whole items.
fn makes_codes(sections: &[Section]) -> bool {
    matches!(sections, [Section { weights, bias: false }] if weights.len() == 2 && weights[0].n.is_multiple_of(32))
}

struct Text {
    rows: Rows,
    /// Rows of A in the text.
    m: u32,
    /// A workgroup makes 32 neighbouring values of each row, and their codes.
    codes: bool,
}

/// The names that each weight has its own of.
const OWN: [&str; 12] = [
    "w",
    "word",
    "Raw",
    "Item",
    "LOW",
    "half_of",
    "row_length",
    "fetch",
    "decode",
    "scale_min",
    "upper",
    "add",
];

/// The text with `own` behind each of these names.
fn renamed(text: &str, own: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len() + 256);
    let mut rest = text;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let len = match is_name(first) {
            true => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (word, after) = rest.split_at(len);
        out.push_str(word);
        // Behind a dot it is a member.
        if before != '.' && OWN.contains(&word) {
            out.push_str(own);
        }
        before = word.chars().next_back().unwrap_or(' ');
        rest = after;
    }
    out
}

impl Text {
    fn launch(
        &self,
        m: u32,
        k: u32,
        sections: &[Section],
        formats: &[Format],
        caps: &Caps,
    ) -> Option<(Launch, Vec<JointRole>)> {
        let Rows { threads, lanes, .. } = self.rows;
        let each = if self.codes { 32 } else { threads / lanes };
        let (mut roles, mut access) = (vec![JointRole::Codes], vec![Access::Read]);
        let mut params = vec![m, k, quantize::stride(k)];
        let mut fields = "struct Params { m: u32, k: u32, span: u32".to_owned();
        let mut head = "@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;\n".to_owned();
        let mut bind = |head: &mut String, role: JointRole, name: &str, how: Access, ty: &str| {
            let mode = if how == Access::Read { "read" } else { "read_write" };
            let at = roles.len();
            *head += &format!("@group(0) @binding({at}) var<storage, {mode}> {name}: array<{ty}>;\n");
            roles.push(role);
            access.push(how);
        };
        let (shared, add) = include_str!("dot_int8.wgsl").split_once("fn add(")?;
        let mut functions = shared.to_owned();
        let (mut body, mut end, mut number) = (String::new(), 0u32, 0);
        for (s, section) in sections.iter().enumerate() {
            for p in 0..section.weights.len() {
                let own = format!("_{s}_{p}");
                let format = formats[number];
                number += 1;
                bind(&mut head, JointRole::Weight(s, p), &format!("w{own}"), Access::Read, "vec4<u32>");
                let add = format!("fn add({}", expand(add, &[("add", format.add())]));
                functions += &renamed(&(format.text() + &add), &own);
            }
            if section.bias {
                bind(&mut head, JointRole::Bias(s), &format!("bias_{s}"), Access::Read, "f32");
            }
            bind(&mut head, JointRole::Out(s), &format!("dst_{s}"), Access::ReadWrite, "f32");
            let n = section.weights[0].n;
            fields += &format!(", n{s}: u32, end{s}: u32");
            end = end.checked_add(n.div_ceil(each))?;
            params.extend([n, end]);
            body += &self.section(s, section);
        }
        if self.codes {
            bind(&mut head, JointRole::NextCodes, "dst", Access::ReadWrite, "vec4<u32>");
            functions += quantize::CODES;
            head += &format!("var<workgroup> made: array<f32, {}>;\n", 32 * self.m);
        }
        let shuffle = self.rows.team == Team::Shuffle;
        let shared_sums = match shuffle {
            true => String::new(),
            false => format!("var<workgroup> shared_sums: array<f32, {threads}>;\n"),
        };
        let builtins = "    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,\n    \
                        @builtin(subgroup_id) subgroup: u32,\n    @builtin(subgroup_size) width: u32,\n";
        let (builtins, thread) =
            if shuffle { (builtins, "subgroup * width + lane_in_subgroup") } else { ("", "local") };
        let wgsl = format!(
            "{fields} }}\n{head}{functions}{shared_sums}\
             @compute @workgroup_size({threads})\nfn main(\n    @builtin(workgroup_id) wid: vec3<u32>,\n    \
             @builtin(num_workgroups) grid: vec3<u32>,\n    @builtin(local_invocation_index) local: u32,\n{builtins}) {{\n    \
             let group = wid.x + grid.x * (wid.y + grid.y * wid.z);\n    let thread = {thread};\n    \
             let lane = thread % {lanes}u;\n    let items = params.k / 32u;\n{}{body}}}\n",
            lines(self.m, |i| format!("    let q{i} = min({i}u, params.m - 1u) * params.span;"))
        );
        let names: Vec<String> = sections
            .iter()
            .map(|s| s.weights.iter().map(|w| format!("{:?}", w.dtype)).collect::<Vec<_>>().join("·"))
            .collect();
        let codes = if self.codes { " codes" } else { "" };
        let label = format!("qmatmul joint {} {} m={}{codes}", names.join("+"), self.rows, self.m);
        let kernel = Kernel { label: label.into(), wgsl, access, param_words: params.len() as u32 };
        let workgroups = fold_grid(end.into(), caps.max_workgroups)?;
        Some((Launch { kernel, params, workgroups }, roles))
    }

    /// The work of the workgroups of a section.
    fn section(&self, s: usize, section: &Section) -> String {
        let Rows { threads, lanes, unroll, .. } = self.rows;
        let teams = threads / lanes;
        let products = section.weights.len();
        let each = |text: &dyn Fn(usize) -> String| (0..products).map(text).collect::<String>();
        let first = if s == 0 { "0u".to_owned() } else { format!("params.end{}", s - 1) };
        let condition = match s {
            0 => format!("    if (group < params.end{s}) {{\n"),
            _ => format!("    if (group >= {first} && group < params.end{s}) {{\n"),
        };
        let m = self.m;
        let step = |count: u32| {
            let mut text = String::new();
            for u in 0..count {
                let at = u * lanes;
                text += &each(&|p| format!("            let x{p}_{u} = fetch_{s}_{p}(b{p}, it + {at}u);\n"));
            }
            for u in 0..count {
                let at = u * lanes;
                text +=
                    &each(&|p| format!("            let y{p}_{u} = decode_{s}_{p}(x{p}_{u}, it + {at}u);\n"));
                for i in 0..m {
                    text += &format!("            let v{i}_{u} = values(q{i}, it + {at}u);\n");
                    text += &each(&|p| {
                        format!("            s{p}_{i} = add_{s}_{p}(s{p}_{i}, y{p}_{u}, v{i}_{u});\n")
                    });
                }
            }
            text
        };
        let mut text = condition;
        text += &match self.codes {
            // In rounds, where the teams are fewer.
            true => format!(
                "        for (var round = 0u; round < 32u; round += {teams}u) {{\n        \
                 let slot = round + thread / {lanes}u;\n        let row = group * 32u + slot;\n"
            ),
            false => format!("        let row = (group - {first}) * {teams}u + thread / {lanes}u;\n"),
        };
        text += &format!("        let clamped = min(row, params.n{s} - 1u);\n");
        text += &each(&|p| format!("        let b{p} = clamped * row_length_{s}_{p}();\n"));
        text += &each(&|p| lines(m, |i| format!("        var s{p}_{i} = 0.0;")));
        let (last, stride) = ((unroll - 1) * lanes, unroll * lanes);
        text += &format!(
            "        var it = lane;\n        for (; it + {last}u < items; it += {stride}u) {{\n{}        }}\n",
            step(unroll)
        );
        if unroll > 1 {
            text += &format!("        for (; it < items; it += {lanes}u) {{\n{}        }}\n", step(1));
        }
        for (number, (p, i)) in (0..products).flat_map(|p| (0..m).map(move |i| (p, i))).enumerate() {
            match self.rows.team {
                Team::Memory => text += &format!("{}\n", tree(number as u32, &format!("s{p}_{i}"), lanes)),
                Team::Shuffle => {
                    text += &format!("        var t{number} = s{p}_{i};\n");
                    let halves =
                        std::iter::successors(Some(lanes / 2), |h| Some(h / 2)).take_while(|h| *h > 0);
                    for half in halves {
                        text += &format!("        t{number} += subgroupShuffleXor(t{number}, {half}u);\n");
                    }
                }
            }
        }
        let bias = if section.bias { format!(" + bias_{s}[row]") } else { String::new() };
        for i in 0..m {
            let value = match products {
                2 => format!("t{i} / (1.0 + exp(-t{i})) * t{}", m + i),
                _ => format!("t{i}"),
            };
            let (here, keep) = match self.codes {
                true => ("slot < 32u".to_owned(), format!(" made[{}u + slot] = value;", 32 * i)),
                false => (format!("row < params.n{s}"), String::new()),
            };
            text += &format!(
                "        if (lane == {}u && {i}u < params.m && {here}) {{ let value = {value}{bias}; \
                 dst_{s}[{i}u * params.n{s} + row] = value;{keep} }}\n",
                i % lanes
            );
        }
        if self.codes {
            text += &self.make_codes(section.weights[0].n);
        }
        text + "    }\n"
    }

    /// The end of the rounds, and the codes of what they made: a thread takes a row.
    fn make_codes(&self, n: u32) -> String {
        let to = quantize::place_of_item(n, "local", "group");
        let four = |at: u32| {
            let of = |i: u32| format!("made[local * 32u + {}u]", at * 4 + i);
            format!("vec4<f32>({}, {}, {}, {})", of(0), of(1), of(2), of(3))
        };
        let eight = (0..8).map(four).collect::<Vec<_>>().join(",\n            ");
        format!(
            "        }}\n        workgroupBarrier();\n        if (local < params.m) {{\n            \
             put_item({to}, {eight});\n        }}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::renamed;

    #[test]
    fn names_are_changed_and_members_are_not() {
        let text = "fn word(at: u32) -> u32 { return w[at].w + raw.word; } // wordy";
        assert_eq!(
            renamed(text, "_1"),
            "fn word_1(at: u32) -> u32 { return w_1[at].w + raw.word; } // wordy"
        );
    }
}
