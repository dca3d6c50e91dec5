//! A model as JSON. Field names here are an interface: add, do not rename.

use fulmen_core::DType;
use fulmen_core::device::DeviceInfo;
use fulmen_model::gguf::{Array, Value as MetadataValue, ValueType};
use serde_json::{Map, Value, json};

use super::{Report, room};

/// The whole report as indented JSON with a newline at its end.
pub(super) fn render(report: &Report) -> String {
    let (summary, source) = (&report.summary, report.source);
    let types: Map<String, Value> = summary
        .types
        .iter()
        .map(|(dtype, share)| {
            let share =
                json!({ "tensors": share.tensors, "parameters": share.parameters, "bytes": share.bytes });
            (dtype.to_string(), share)
        })
        .collect();
    let files: Vec<Value> = source
        .files()
        .iter()
        .map(|(path, bytes)| json!({ "path": path.display().to_string(), "bytes": bytes }))
        .collect();
    let memory = report.memory.map(|memory| {
        json!({
            "context": memory.context,
            "weights": memory.weights,
            "kv_f16": memory.kv_f16,
            "kv_q8_0": memory.kv_q8_0,
            "kv_engine_f16": report.served.as_ref().map(|served| served.f16.bytes),
            "kv_engine_q8_0": report.served.as_ref().and_then(|served| served.q8_0).map(|cache| cache.bytes),
            "states": memory.states,
            "activations": memory.activations,
            "total_f16": memory.with_f16(),
            "total_q8_0": memory.with_q8_0(),
        })
    });
    let mut object = json!({
        "format": source.format(),
        "files": files,
        "architecture": summary.architecture,
        "name": summary.name,
        "parameters": summary.parameters,
        "active_parameters": summary.active_parameters,
        "bytes": summary.bytes,
        "types": types,
        "layers": summary.layers,
        "embedding": summary.embedding,
        "heads": summary.heads,
        "kv_heads": summary.kv_heads(),
        "head_size": summary.key_size,
        "feed_forward": summary.feed_forward,
        "experts": summary.experts,
        "experts_used": summary.experts_used,
        "expert_feed_forward": summary.expert_feed_forward,
        "context": summary.context,
        "vocabulary": summary.vocabulary,
        "tokenizer": summary.tokenizer,
        "pre_tokenizer": summary.pre_tokenizer,
        "merges_without_token": report.tokenizer.as_ref().ok().and_then(|t| t.as_ref())
            .map(|tokenizer| tokenizer.merges_without_token()),
        "tokenizer_error": report.tokenizer.as_ref().err().map(|error| error.to_string()),
        "chat_template": summary.chat_template,
        "memory": memory,
        "cpu_experts": report.experts.as_ref().map(|needs| json!({
            "layers": needs.layers,
            "experts": needs.experts,
            "rest": needs.rest,
        })),
        "tensor_parallel": report.ranks.iter().map(|needs| json!({
            "ranks": needs.ranks,
            "weights": needs.weights,
            "kv_f16": needs.kv_f16,
        })).collect::<Vec<_>>(),
        "devices": report.devices.iter().map(|info| device(report, info)).collect::<Vec<_>>(),
    });
    if report.args.tensors {
        let tensor = |tensor: &fulmen_model::source::TensorInfo| {
            json!({
                "name": tensor.name(),
                "dims": tensor.dims(),
                "type": tensor.dtype().to_string(),
                "bytes": tensor.bytes(),
            })
        };
        object["tensors"] = source.tensors().iter().map(tensor).collect();
    }
    if report.args.keys {
        let key = |(key, value): (&str, &MetadataValue)| (key.to_owned(), value_json(value));
        object["keys"] = Value::Object(source.metadata().iter().map(key).collect());
    }
    format!("{object:#}\n")
}

fn device(report: &Report, device: &DeviceInfo) -> Value {
    let fits = |needed: Option<u64>| Some(needed? <= room(device)?);
    let memory = report.memory.as_ref();
    let longest = |dtype| report.summary.longest_context(dtype, room(device)?);
    json!({
        "device": device.selector().to_string(),
        "runs_graphs": device.runs_graphs.is_ok(),
        "memory_bytes": device.memory_bytes,
        "free_bytes": device.free_bytes,
        "fits_f16": fits(memory.map(|memory| memory.with_f16())),
        "fits_q8_0": fits(memory.and_then(|memory| memory.with_q8_0())),
        "longest_context_f16": longest(DType::F16),
        "longest_context_q8_0": longest(DType::Q8_0),
    })
}

/// The value; numbers that JSON does not have (NaN, infinities) are null.
fn value_json(value: &MetadataValue) -> Value {
    match value {
        MetadataValue::U8(x) => json!(x),
        MetadataValue::I8(x) => json!(x),
        MetadataValue::U16(x) => json!(x),
        MetadataValue::I16(x) => json!(x),
        MetadataValue::U32(x) => json!(x),
        MetadataValue::I32(x) => json!(x),
        MetadataValue::F32(x) => json!(x),
        MetadataValue::Bool(x) => json!(x),
        MetadataValue::String(x) => json!(x),
        MetadataValue::U64(x) => json!(x),
        MetadataValue::I64(x) => json!(x),
        MetadataValue::F64(x) => json!(x),
        MetadataValue::Array(array) => array_json(array),
    }
}

fn array_json(array: &Array) -> Value {
    match array.item_type() {
        ValueType::String => array.as_strings().into_iter().flatten().collect(),
        ValueType::F32 => array.as_numbers::<f32>().into_iter().flatten().collect(),
        ValueType::F64 => array.as_numbers::<f64>().into_iter().flatten().collect(),
        ValueType::Bool => array.as_numbers::<bool>().into_iter().flatten().collect(),
        ValueType::U64 => array.as_numbers::<u64>().into_iter().flatten().collect(),
        _ => array.as_integers().into_iter().flatten().filter_map(|x| i64::try_from(x).ok()).collect(),
    }
}
