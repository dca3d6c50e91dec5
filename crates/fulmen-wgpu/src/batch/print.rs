//! Prints a batch, one line per value.

use std::fmt;

use super::GpuCommandBatch;
use super::value::{Op, Source};

impl fmt::Display for GpuCommandBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, value) in self.values.iter().enumerate() {
            write!(f, "%{index}: {:?} {} = ", value.elem, value.len)?;
            match &value.source {
                Source::Upload { .. } => writeln!(f, "upload")?,
                Source::Import(_) => writeln!(f, "import")?,
                Source::Op(op) => {
                    let mut args: Vec<String> = op.args().iter().map(|id| format!("%{id}")).collect();
                    match op {
                        Op::Elementwise { scalars, .. } => args.extend(scalars.iter().map(f32::to_string)),
                        Op::Matmul { shape, .. } => args.push(shape.to_string()),
                        _ => {}
                    }
                    let place = value.in_place_of.map_or(String::new(), |id| format!(" overwriting %{id}"));
                    writeln!(f, "{}({}){place}", op.name(), args.join(", "))?;
                }
            }
        }
        Ok(())
    }
}
