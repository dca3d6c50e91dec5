//! GGUF files: reading, writing, quantizing.

use std::path::PathBuf;
use std::sync::Arc;

use fulmen::core::{DType, quant};
use fulmen::model::gguf::{Array, GgufFile, GgufWriter, Metadata, NewFile, Value, ValueType};
use fulmen::model::quantize::{self, QuantizePlan, Recipe};
use fulmen::model::source::{self, TensorInfo};
use numpy::{PyArray1, PyReadonlyArray1, ToPyArray};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::cancel::{Cancel, CancelToken};
use crate::failure::Failure;
use crate::worker::{Interrupted, detached, wait};

/// An open GGUF file.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct GgufReader {
    file: Arc<GgufFile>,
}

/// A value of the metadata as one of Python.
fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::U8(x) => x.into_pyobject(py)?.into_any(),
        Value::I8(x) => x.into_pyobject(py)?.into_any(),
        Value::U16(x) => x.into_pyobject(py)?.into_any(),
        Value::I16(x) => x.into_pyobject(py)?.into_any(),
        Value::U32(x) => x.into_pyobject(py)?.into_any(),
        Value::I32(x) => x.into_pyobject(py)?.into_any(),
        Value::U64(x) => x.into_pyobject(py)?.into_any(),
        Value::I64(x) => x.into_pyobject(py)?.into_any(),
        Value::F32(x) => x.into_pyobject(py)?.into_any(),
        Value::F64(x) => x.into_pyobject(py)?.into_any(),
        Value::Bool(x) => x.into_pyobject(py)?.to_owned().into_any(),
        Value::String(x) => x.into_pyobject(py)?.into_any(),
        Value::Array(array) => array_to_python(py, array)?,
    })
}

fn array_to_python<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! list {
        ($($variant:ident $ty:ty),*) => {
            match array.item_type() {
                $(ValueType::$variant => {
                    let items = array.as_numbers::<$ty>().into_iter().flatten();
                    PyList::new(py, items.collect::<Vec<$ty>>())?.into_any()
                })*
                ValueType::String => {
                    let items: Vec<&str> = array.as_strings().into_iter().flatten().collect();
                    PyList::new(py, items)?.into_any()
                }
                _ => PyList::empty(py).into_any(),
            }
        };
    }
    Ok(list!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64, F32 f32, F64 f64, Bool bool))
}

/// The metadata of a model as a dictionary.
pub(crate) fn metadata_dict<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in metadata.iter() {
        dict.set_item(key, to_python(py, value)?)?;
    }
    Ok(dict)
}

/// A value of Python as one of the metadata: booleans, strings, numbers and lists of one of them. Integers
/// are U32 or I32 where they fit, else U64 or I64; floats are F32.
fn of_python(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let refused = |what: &str| {
        PyTypeError::new_err(format!(
            "metadata key {key:?}: expected a bool, int, float, str or a list of one of them, got {what}"
        ))
    };
    if value.is_instance_of::<PyBool>() {
        return Ok(Value::Bool(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        if let Ok(x) = value.extract::<u32>() {
            return Ok(Value::U32(x));
        }
        if let Ok(x) = value.extract::<i32>() {
            return Ok(Value::I32(x));
        }
        return match value.extract::<u64>() {
            Ok(x) => Ok(Value::U64(x)),
            Err(_) => Ok(Value::I64(value.extract()?)),
        };
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Value::F32(value.extract()?));
    }
    if value.is_instance_of::<PyString>() {
        return Ok(Value::String(value.extract()?));
    }
    let Ok(list) = value.cast::<PyList>() else {
        return Err(refused(&value.get_type().name()?.to_string()));
    };
    let Ok(first) = list.get_item(0) else { return Ok(Value::Array(Array::numbers::<u32>(&[]))) };
    let array = if first.is_instance_of::<PyBool>() {
        Array::numbers(&list.extract::<Vec<bool>>()?)
    } else if first.is_instance_of::<PyInt>() {
        match list.extract::<Vec<i32>>() {
            Ok(items) => Array::numbers(&items),
            Err(_) => Array::numbers(&list.extract::<Vec<i64>>()?),
        }
    } else if first.is_instance_of::<PyFloat>() {
        Array::numbers(&list.extract::<Vec<f32>>()?)
    } else if first.is_instance_of::<PyString>() {
        Array::strings(list.extract::<Vec<String>>()?)
    } else {
        return Err(refused(&format!("a list of {}", first.get_type().name()?)));
    };
    Ok(Value::Array(array))
}

#[pymethods]
impl GgufReader {
    /// Opens a file.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<GgufReader> {
        detached(py, || Ok(GgufReader { file: Arc::new(GgufFile::open(path)?) }))
    }

    /// The version of the format.
    fn version(&self) -> u32 {
        self.file.version()
    }

    /// The metadata.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metadata_dict(py, self.file.metadata())
    }

    /// Name, shape (rows first, as numpy has it), type and bytes of each tensor.
    fn tensors(&self) -> Vec<(String, Vec<usize>, &'static str, usize)> {
        let info = |tensor: &TensorInfo| {
            let shape = tensor.dims().iter().rev().copied().collect();
            (tensor.name().to_owned(), shape, tensor.dtype().name(), tensor.bytes())
        };
        self.file.tensors().iter().map(info).collect()
    }

    /// The bytes of a tensor, as they are stored.
    fn data<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let data = self.file.data(name).map_err(Failure::from)?;
        let bytes = data.to_pyarray(py);
        self.file.check_unchanged().map_err(Failure::from)?;
        Ok(bytes)
    }
}

/// The elements of a block format or float type as f32.
#[pyfunction]
pub(crate) fn dequantize<'py>(
    py: Python<'py>,
    bytes: PyReadonlyArray1<'py, u8>,
    dtype: &str,
    elements: usize,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let dtype: DType = dtype.parse().map_err(Failure::from)?;
    let bytes = bytes.as_slice()?;
    let values = detached(py, || Ok(quant::dequantize_to_vec(dtype, bytes, elements)?))?;
    Ok(values.to_pyarray(py))
}

/// f32 values in a block format or float type.
#[pyfunction]
pub(crate) fn quantize_array<'py>(
    py: Python<'py>,
    values: PyReadonlyArray1<'py, f32>,
    dtype: &str,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let dtype: DType = dtype.parse().map_err(Failure::from)?;
    let values = values.as_slice()?;
    let bytes = detached(py, || Ok(quant::quantize_to_vec(dtype, values)?))?;
    Ok(bytes.to_pyarray(py))
}

/// Elements and bytes of a block of a type.
#[pyfunction]
pub(crate) fn block_of(dtype: &str) -> PyResult<(usize, usize)> {
    let dtype: DType = dtype.parse().map_err(Failure::from)?;
    Ok((dtype.block_len(), dtype.block_bytes()))
}

/// A tensor to be written: name, shape with rows first, type, bytes.
type NewTensor<'py> = (String, Vec<usize>, String, PyReadonlyArray1<'py, u8>);

/// Writes a GGUF file. It appears when it is complete.
#[pyfunction]
pub(crate) fn write_gguf(
    py: Python<'_>,
    path: PathBuf,
    metadata: &Bound<'_, PyDict>,
    tensors: Vec<NewTensor<'_>>,
    replace: bool,
) -> PyResult<()> {
    let mut keys = Metadata::new();
    for (key, value) in metadata.iter() {
        let key: String = key.extract()?;
        let value = of_python(&key, &value)?;
        keys.set(key, value);
    }
    let (mut infos, mut data) = (Vec::new(), Vec::new());
    for (name, shape, dtype, bytes) in &tensors {
        let wrong = |expected: &str| {
            Failure::argument(
                "write",
                &format!("the shape of tensor {name:?}"),
                expected,
                format!("{shape:?}"),
            )
        };
        if !(1..=4).contains(&shape.len()) {
            return Err(wrong("of one to four dimensions").into());
        }
        if shape.contains(&0) {
            return Err(wrong("without a dimension of 0").into());
        }
        let dims: Vec<usize> = shape.iter().rev().copied().collect();
        let dtype: DType = dtype.parse().map_err(Failure::from)?;
        let info = TensorInfo::new(name, &dims, dtype).map_err(Failure::from)?;
        let bytes = bytes.as_slice()?;
        if bytes.len() != info.bytes() {
            let what = format!("the number of bytes of tensor {name:?}");
            return Err(Failure::argument("write", &what, info.bytes(), bytes.len()).into());
        }
        infos.push(info);
        data.push(bytes);
    }
    detached(py, || {
        let mut writer = GgufWriter::<NewFile>::create(&path, replace, &keys, &infos)?;
        for (info, bytes) in infos.iter().zip(data) {
            writer.write(info.name(), bytes)?;
        }
        Ok(writer.finish()?.keep()?)
    })
}

/// Converts a model to smaller types. `progress(done, total)` gets elements.
#[pyfunction]
#[pyo3(signature = (path, out, recipe, replace, threads=None, progress=None, token=None))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn quantize_file(
    py: Python<'_>,
    path: String,
    out: PathBuf,
    recipe: &str,
    replace: bool,
    threads: Option<usize>,
    progress: Option<Bound<'_, PyAny>>,
    token: Option<Bound<'_, CancelToken>>,
) -> PyResult<(u64, u64)> {
    let recipe: Recipe = recipe.parse().map_err(Failure::from)?;
    if threads == Some(0) {
        return Err(Failure::argument("quantize", "threads", "at least 1", 0).into());
    }
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let cancel = Cancel::of(token.as_ref().map(Bound::get));
    let own = Arc::clone(&cancel);
    wait(py, &cancel, Interrupted::Join, progress.as_ref(), move |reporter| {
        let source = source::open(crate::loaded::find(&path)?)?;
        let plan = QuantizePlan::of(source.as_ref(), recipe)?;
        let (mut done, total) = (0, plan.work);
        quantize::quantize(source.as_ref(), &plan, &out, replace, threads, |elements| {
            done += elements;
            reporter.progress(done, total);
            own.flow()
        })?;
        Ok((plan.before, plan.after))
    })
}

/// The names of the types that a model can be quantized to.
#[pyfunction]
pub(crate) fn recipes() -> Vec<&'static str> {
    Recipe::all().map(Recipe::name).collect()
}

/// The GGUF file of the built-in model.
#[pyfunction]
pub(crate) fn story_bytes<'py>(py: Python<'py>) -> Bound<'py, PyBytes> {
    PyBytes::new(py, (*crate::story::story_model()).as_ref())
}
