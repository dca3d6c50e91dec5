//! `fulmen ops list`.

use std::collections::BTreeMap;

use fulmen_bench::{BenchError, dtype_name};
use fulmen_core::DType;
use serde_json::json;

use super::{CaseFilter, OpsError};
use crate::output::{columns, counted, print};

/// List the ops of the table with their types and number of cases.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    filter: CaseFilter,

    /// List the name of every case.
    #[arg(long)]
    cases: bool,

    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen ops list
  fulmen ops list --cases --op rope        the name of every RoPE case";

pub(super) fn run(args: &Args) -> Result<(), OpsError> {
    let filter = args.filter.filter();
    let cases: Vec<_> = fulmen_testkit::table().into_iter().filter(|case| filter.takes(case)).collect();
    if cases.is_empty() {
        return Err(BenchError::NoCases.into());
    }
    let mut ops: Vec<(&str, usize, BTreeMap<DType, usize>)> = Vec::new();
    for case in &cases {
        if ops.last().is_none_or(|(op, ..)| *op != case.op) && !ops.iter().any(|(op, ..)| *op == case.op) {
            ops.push((case.op, 0, BTreeMap::new()));
        }
        if let Some((_, count, types)) = ops.iter_mut().find(|(op, ..)| *op == case.op) {
            *count += 1;
            *types.entry(case.dtype).or_default() += 1;
        }
    }
    let output = if args.json {
        let list: Vec<_> = ops
            .iter()
            .map(|(op, count, types)| {
                let types: serde_json::Map<_, _> =
                    types.iter().map(|(dtype, n)| (dtype_name(*dtype), json!(n))).collect();
                json!({ "op": op, "cases": count, "types": types })
            })
            .collect();
        let names: Option<Vec<&str>> = args.cases.then(|| cases.iter().map(|c| c.name.as_str()).collect());
        format!("{:#}\n", json!({ "ops": list, "cases": cases.len(), "names": names }))
    } else if args.cases {
        cases.iter().map(|case| case.name.clone() + "\n").collect()
    } else {
        let rows: Vec<Vec<String>> =
            ops.iter().map(|(op, count, _)| vec![(*op).to_owned(), count.to_string()]).collect();
        let lines = columns(&["op", "cases"], &rows);
        let mut lines = lines.lines();
        let mut text = format!("{}  types\n", lines.next().unwrap_or_default());
        for (line, (_, _, types)) in lines.zip(&ops) {
            let types: Vec<String> = types.keys().map(|dtype| dtype_name(*dtype)).collect();
            text += &format!("{line}  {}\n", types.join(" "));
        }
        text + &format!("{} of {}\n", counted(cases.len(), "case"), counted(ops.len(), "op"))
    };
    Ok(print(&output)?)
}
