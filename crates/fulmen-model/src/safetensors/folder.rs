//! A Hugging Face folder as a model source.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, TryReserveError},
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use fulmen_core::{DType, SharedBytes, quant};
use serde::de::DeserializeOwned;

use super::config::{Config, TEMPLATE, TokenizerConfig};
use super::convert::{Conversion, Order, dims_of, is_single};
use super::error::{SafetensorsError, SafetensorsProblem};
use super::experts::{ExpertPart, StackedExperts};
use super::header::{SafetensorsFile, no_memory};
use super::mxfp4::{Mxfp4Origin, Mxfp4Tensors};
use super::names::{Name, gguf_name, is_draft, text_name};
use crate::gguf::storage::Storage;
use crate::gguf::{Metadata, TensorData};
use crate::mapping::OpenFile;
use crate::source::{ModelSource, SourceError, TensorInfo};

/// Size limit for JSON files. The index of a large model has about 100 KiB.
const MAX_JSON: u64 = 64 << 20;

/// A model from a folder with `config.json` and safetensors files, with GGUF keys and names.
///
/// Matrices keep their type (F32, F16, BF16) and are memory-mapped. Three things are converted on access, so
/// that the source looks like a GGUF file: vectors, convolutions and the routers of experts become F32 (with
/// 1 added to the norms of Gemma 3 and of hybrid models), heads are brought into GGUF order (the rows of the
/// query and key matrices of `llama` and its relatives in interleaved RoPE pairs, the value heads of
/// Qwen3.5's delta nets), and the weights of experts are stacked to one tensor per layer and projection, or
/// those of gpt-oss, in MXFP4, brought into GGUF order.
///
/// For files that change while they are open, see [`GgufFile`](crate::gguf::GgufFile).
pub struct SafetensorsFolder {
    path: PathBuf,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Where the data of each tensor comes from, in the same order.
    origins: Vec<Origin>,
    index: HashMap<String, usize>,
    files: Vec<(PathBuf, u64, Arc<Storage>)>,
}

enum Origin {
    /// A tensor in a file.
    File { file: usize, range: Range<usize>, dtype: DType, conversion: Conversion },
    /// The weights of all experts, one after another.
    Experts(Vec<ExpertPart>),
    /// Blocks of gpt-oss.
    Mxfp4(Mxfp4Origin),
    /// Every second value of vectors, from the first or the second one on, as F32.
    EverySecond { file: usize, range: Range<usize>, dtype: DType, first: usize },
    /// Values computed from the configuration.
    Computed(Arc<F32Data>),
}

/// f32 values that can be imported as bytes.
struct F32Data(Vec<f32>);

impl AsRef<[u8]> for F32Data {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl SafetensorsFolder {
    /// Opens a folder.
    pub fn open(path: impl AsRef<Path>) -> Result<SafetensorsFolder, SafetensorsError> {
        let path = path.as_ref();
        let config_path = path.join("config.json");
        let config = Config::from_json(read_json(&config_path)?)
            .map_err(|error| SafetensorsError::new(&config_path, error.into()))?;
        let at_config = |problem| SafetensorsError::new(&config_path, problem);
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let metadata = config.metadata(&name).map_err(at_config)?;
        let mut folder = SafetensorsFolder {
            path: path.to_owned(),
            metadata,
            tensors: Vec::new(),
            origins: Vec::new(),
            index: HashMap::new(),
            files: Vec::new(),
        };
        folder.read_tokenizer_config()?;
        folder.read_weights(&config)?;
        for (name, factors) in config.rope_factors().map_err(at_config)? {
            let info = TensorInfo::new(name, &[factors.len()], DType::F32);
            let info =
                info.map_err(|error| at_config(SafetensorsProblem::Size { tensor: name.to_owned(), error }))?;
            folder.add(info, Origin::Computed(Arc::new(F32Data(factors))), &config_path)?;
        }
        Ok(folder)
    }

    /// The folder's `tokenizer.json`, if it has one.
    pub fn tokenizer_json(&self) -> Option<PathBuf> {
        Some(self.path.join("tokenizer.json")).filter(|path| path.is_file())
    }

    fn read_tokenizer_config(&mut self) -> Result<(), SafetensorsError> {
        let path = self.path.join("tokenizer_config.json");
        if path.is_file() {
            read_json::<TokenizerConfig>(&path)?.describe(&mut self.metadata);
        }
        // Newer folders store the template in a separate file.
        let path = self.path.join("chat_template.jinja");
        if path.is_file() {
            let text = String::from_utf8(read_small(&path)?).map_err(|error| {
                let error = std::io::Error::new(std::io::ErrorKind::InvalidData, error.utf8_error());
                SafetensorsError::new(&path, SafetensorsProblem::Io { call: "read it as text", error })
            })?;
            self.metadata.set(TEMPLATE, text);
        }
        Ok(())
    }

    fn read_weights(&mut self, config: &Config) -> Result<(), SafetensorsError> {
        let index_path = self.path.join("model.safetensors.index.json");
        let single = self.path.join("model.safetensors");
        let index: Option<Index> = if index_path.is_file() { Some(read_json(&index_path)?) } else { None };
        let at_index = |problem| SafetensorsError::new(&index_path, problem);
        let names: BTreeSet<&str> = match &index {
            Some(index) => index.weight_map.values().map(String::as_str).collect(),
            None if single.exists() => BTreeSet::from(["model.safetensors"]),
            None => return Err(SafetensorsError::new(&self.path, SafetensorsProblem::NoWeights)),
        };
        let mut found: HashMap<String, &str> = HashMap::new();
        let mut experts = StackedExperts::new(config.experts().map_err(at_index)?);
        let mut blocks = Mxfp4Tensors::default();
        let is_gpt_oss = config.architecture().map_err(at_index)? == "gpt-oss";
        for name in names {
            // A name with a separator could leave the folder.
            if Path::new(name).file_name() != Some(name.as_ref()) || name.contains(['/', '\\']) {
                return Err(at_index(SafetensorsProblem::FileName(name.to_owned())));
            }
            let path = self.path.join(name);
            let at = |problem| SafetensorsError::new(&path, problem);
            let file = SafetensorsFile::open(&path).map_err(at)?;
            let number = self.files.len();
            self.files.push((path.clone(), file.bytes, file.storage));
            found.try_reserve(file.tensors.len()).map_err(|error| at(no_memory(error)))?;
            self.reserve(file.tensors.len()).map_err(|error| at(no_memory(error)))?;
            for raw in file.raw {
                if !is_gpt_oss {
                    return Err(at(SafetensorsProblem::Type { tensor: raw.name, dtype: "U8".to_owned() }));
                }
                found.insert(raw.name.clone(), name);
                blocks.add(raw, number).map_err(at)?;
            }
            for (info, range) in file.tensors {
                found.insert(info.name().to_owned(), name);
                self.add_from_file(config, info, number, range, &path, &mut experts)?;
            }
        }
        for (info, parts) in experts.finish().map_err(|problem| SafetensorsError::new(&self.path, problem))? {
            let path = self.path.clone();
            self.add(info, Origin::Experts(parts), &path)?;
        }
        for (info, origin) in blocks.finish().map_err(|problem| SafetensorsError::new(&self.path, problem))? {
            let path = self.path.clone();
            self.add(info, Origin::Mxfp4(origin), &path)?;
        }
        let mut expected = index.iter().flat_map(|index| &index.weight_map);
        match expected.find(|(tensor, file)| found.get(*tensor) != Some(&file.as_str())) {
            Some((tensor, file)) => {
                let (tensor, file) = (tensor.clone(), file.clone());
                Err(at_index(SafetensorsProblem::NotInFile { tensor, file }))
            }
            None => Ok(()),
        }
    }

    fn add_from_file(
        &mut self,
        config: &Config,
        info: TensorInfo,
        file: usize,
        range: Range<usize>,
        path: &Path,
        experts: &mut StackedExperts,
    ) -> Result<(), SafetensorsError> {
        let at = |problem| SafetensorsError::new(path, problem);
        let unknown = || at(SafetensorsProblem::UnknownTensor(info.name().to_owned()));
        let architecture = config.architecture().map_err(at)?;
        // They are not run.
        if architecture == "glm4moe" && is_draft(info.name(), config.num_hidden_layers) {
            return Ok(());
        }
        let name = match config.is_text_part {
            true => text_name(info.name(), architecture),
            false => gguf_name(info.name(), architecture),
        };
        let name = match name.ok_or_else(unknown)? {
            Name::Unused => return Ok(()),
            Name::Expert { name, expert } => {
                return experts.add(name, expert, &info, ExpertPart { file, range }).map_err(at);
            }
            Name::GateUp(names) => return self.add_gate_up(&info, names, file, range, path),
            Name::GateBeforeUp(names) => {
                return self.add_gate_before_up(&info, names, file, range, path);
            }
            // A copy of the tied embedding, which is used instead.
            Name::Known(name) if name == "output.weight" && config.tied() => return Ok(()),
            Name::Known(name) => name,
        };
        let conversion = config.conversion(&name).map_err(at)?;
        let dims = dims_of(&name, info.dims());
        conversion.order.check(info.name(), &dims).map_err(at)?;
        let dtype = if is_single(&name, &dims) { DType::F32 } else { info.dtype() };
        let ours = TensorInfo::new(name, &dims, dtype);
        let ours =
            ours.map_err(|error| at(SafetensorsProblem::Size { tensor: info.name().to_owned(), error }))?;
        self.add(ours, Origin::File { file, range, dtype: info.dtype(), conversion }, path)
    }

    /// Weights of all experts, of each the rows of gate before those of up.
    fn add_gate_before_up(
        &mut self,
        info: &TensorInfo,
        names: [String; 2],
        file: usize,
        range: Range<usize>,
        path: &Path,
    ) -> Result<(), SafetensorsError> {
        let at = |problem| SafetensorsError::new(path, problem);
        let &[width, rows, experts] = info.dims() else {
            return Err(at(not_gate_up(info, "three dimensions")));
        };
        if !rows.is_multiple_of(2) {
            return Err(at(not_gate_up(info, "an even number of rows")));
        }
        let half = info.bytes() / experts / 2;
        for (part, name) in names.into_iter().enumerate() {
            let ours = TensorInfo::new(&name, &[width, rows / 2, experts], info.dtype());
            let ours = ours.map_err(|error| at(SafetensorsProblem::Size { tensor: name, error }))?;
            let expert = |expert| {
                let start = range.start + (2 * expert + part) * half;
                ExpertPart { file, range: start..start + half }
            };
            self.add(ours, Origin::Experts((0..experts).map(expert).collect()), path)?;
        }
        Ok(())
    }

    /// Vectors of gate and up, whose values come in turn.
    fn add_gate_up(
        &mut self,
        info: &TensorInfo,
        names: [String; 2],
        file: usize,
        range: Range<usize>,
        path: &Path,
    ) -> Result<(), SafetensorsError> {
        let at = |problem| SafetensorsError::new(path, problem);
        let &[width, experts] = info.dims() else {
            return Err(at(not_gate_up(info, "two dimensions")));
        };
        if !width.is_multiple_of(2) {
            return Err(at(not_gate_up(info, "an even number of values")));
        }
        for (first, name) in names.into_iter().enumerate() {
            let ours = TensorInfo::new(&name, &[width / 2, experts], DType::F32);
            let ours = ours.map_err(|error| at(SafetensorsProblem::Size { tensor: name, error }))?;
            let origin = Origin::EverySecond { file, range: range.clone(), dtype: info.dtype(), first };
            self.add(ours, origin, path)?;
        }
        Ok(())
    }

    /// Makes room for this many more tensors.
    fn reserve(&mut self, tensors: usize) -> Result<(), TryReserveError> {
        self.index.try_reserve(tensors)?;
        self.tensors.try_reserve(tensors)?;
        self.origins.try_reserve(tensors)
    }

    fn add(&mut self, info: TensorInfo, origin: Origin, path: &Path) -> Result<(), SafetensorsError> {
        if self.index.insert(info.name().to_owned(), self.tensors.len()).is_some() {
            let duplicate = SafetensorsProblem::Duplicate(info.name().to_owned());
            return Err(SafetensorsError::new(path, duplicate));
        }
        self.tensors.push(info);
        self.origins.push(origin);
        Ok(())
    }

    /// The data of one tensor, with vectors as F32 and rows in GGUF order.
    pub fn data(&self, name: &str) -> Result<SharedBytes, SafetensorsError> {
        let missing = || SafetensorsError::new(&self.path, SafetensorsProblem::NoTensor(name.to_owned()));
        let at = self.index.get(name).copied().ok_or_else(missing)?;
        let info = &self.tensors[at];
        let (file, range, dtype, conversion) = match &self.origins[at] {
            Origin::Computed(values) => return Ok(values.clone()),
            Origin::Experts(parts) => return self.stacked(parts, info.bytes()),
            Origin::Mxfp4(origin) => return self.converted(origin, info.bytes()),
            Origin::EverySecond { file, range, dtype, first } => {
                let data = self.bytes(*file, range)?;
                let wrong = |error| {
                    let problem = SafetensorsProblem::Size { tensor: name.to_owned(), error };
                    SafetensorsError::new(&self.files[*file].0, problem)
                };
                let all = quant::dequantize_to_vec(*dtype, &data, 2 * info.elements()).map_err(wrong)?;
                return Ok(Arc::new(F32Data(all.into_iter().skip(*first).step_by(2).collect())));
            }
            Origin::File { file, range, dtype, conversion } => (*file, range.clone(), *dtype, *conversion),
        };
        let (path, _, storage) = &self.files[file];
        let at = |problem| SafetensorsError::new(path, problem);
        storage.check().map_err(|problem| at(SafetensorsProblem::File(problem)))?;
        let full = |error: TryReserveError| {
            at(SafetensorsProblem::Io { call: "convert a tensor of it", error: error.into() })
        };
        let data = TensorData::new(storage.clone(), range);
        if is_single(name, info.dims()) {
            let wrong = |error| at(SafetensorsProblem::Size { tensor: name.to_owned(), error });
            let mut values = quant::dequantize_to_vec(dtype, &data, info.elements()).map_err(wrong)?;
            conversion.values.apply(&mut values);
            let row = if info.dims().len() == 1 { 1 } else { info.width() };
            return Ok(Arc::new(F32Data(conversion.order.apply(&values, row, 1).map_err(full)?)));
        }
        match conversion.order {
            Order::Same => Ok(data.shared()),
            order => {
                let row = info.bytes() / info.rows();
                Ok(Arc::new(order.apply(&data, row, row / info.width()).map_err(full)?))
            }
        }
    }
}

impl SafetensorsFolder {
    /// Bytes of a file that has not changed.
    fn bytes(&self, file: usize, range: &Range<usize>) -> Result<TensorData, SafetensorsError> {
        let (path, _, storage) = &self.files[file];
        let at = |problem| SafetensorsError::new(path, SafetensorsProblem::File(problem));
        storage.check().map_err(at)?;
        Ok(TensorData::new(storage.clone(), range.clone()))
    }

    /// Blocks of MXFP4 in GGUF order.
    fn converted(&self, origin: &Mxfp4Origin, bytes: usize) -> Result<SharedBytes, SafetensorsError> {
        let blocks = self.bytes(origin.blocks.file, &origin.blocks.range)?;
        let scales = self.bytes(origin.scales.file, &origin.scales.range)?;
        let mut out = Vec::new();
        out.try_reserve_exact(bytes).map_err(|error| {
            let problem = SafetensorsProblem::Io { call: "convert a tensor of it", error: error.into() };
            SafetensorsError::new(&self.path, problem)
        })?;
        origin.convert(&blocks, &scales, &mut out);
        Ok(Arc::new(out))
    }

    /// The bytes of all parts, one after another.
    fn stacked(&self, parts: &[ExpertPart], bytes: usize) -> Result<SharedBytes, SafetensorsError> {
        let mut stacked = Vec::new();
        let full = |error: TryReserveError| {
            let problem = SafetensorsProblem::Io { call: "stack the experts of it", error: error.into() };
            SafetensorsError::new(&self.path, problem)
        };
        stacked.try_reserve_exact(bytes).map_err(full)?;
        for ExpertPart { file, range } in parts {
            stacked.extend_from_slice(&self.bytes(*file, range)?);
        }
        Ok(Arc::new(stacked))
    }

    /// Reads the bytes from `offset` on of equal parts that follow one another.
    fn read_stacked(
        &self,
        parts: &[ExpertPart],
        offset: usize,
        out: &mut [u8],
    ) -> Result<bool, SafetensorsError> {
        let mut done = 0;
        while done < out.len() {
            let size = parts.first().map_or(0, |part| part.range.len());
            let (part, start) = ((offset + done) / size.max(1), (offset + done) % size.max(1));
            let Some(ExpertPart { file, range }) = parts.get(part) else { return Ok(false) };
            let take = (size - start).min(out.len() - done);
            let (path, _, storage) = &self.files[*file];
            let read = storage.read_at(range, start, &mut out[done..done + take]);
            let at = |problem| SafetensorsError::new(path, SafetensorsProblem::File(problem));
            if !read.map_err(at)? {
                return Ok(false);
            }
            done += take;
        }
        Ok(true)
    }
}

fn not_gate_up(info: &TensorInfo, expected: &'static str) -> SafetensorsProblem {
    let shape = info.dims().iter().rev().copied().collect();
    SafetensorsProblem::GateUp { tensor: info.name().to_owned(), shape, expected }
}

fn read_small(path: &Path) -> Result<Vec<u8>, SafetensorsError> {
    let at = |problem| SafetensorsError::new(path, problem);
    let opened = OpenFile::open(path).map_err(|problem| at(SafetensorsProblem::File(problem)))?;
    let (file, bytes) = (opened.file, opened.size);
    if bytes > MAX_JSON {
        return Err(at(SafetensorsProblem::TooLarge { bytes, limit: MAX_JSON }));
    }
    let mut content = Vec::new();
    let read = file.take(MAX_JSON).read_to_end(&mut content);
    read.map_err(|error| at(SafetensorsProblem::Io { call: "read it", error }))?;
    Ok(content)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, SafetensorsError> {
    let content = read_small(path)?;
    serde_json::from_slice(&content).map_err(|error| SafetensorsError::new(path, error.into()))
}

impl ModelSource for SafetensorsFolder {
    fn format(&self) -> String {
        "safetensors".to_owned()
    }

    fn files(&self) -> Vec<(PathBuf, u64)> {
        self.files.iter().map(|(path, bytes, _)| (path.clone(), *bytes)).collect()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        Ok(self.data(name)?)
    }

    /// Tensors that are converted or permuted are available only as a whole.
    fn read_at(&self, name: &str, offset: usize, out: &mut [u8]) -> Result<bool, SourceError> {
        let Some(&at) = self.index.get(name) else { return Ok(false) };
        match &self.origins[at] {
            Origin::File { file, range, conversion: Conversion { order: Order::Same, .. }, .. }
                if !is_single(name, self.tensors[at].dims()) =>
            {
                let (path, _, storage) = &self.files[*file];
                let read = storage.read_at(range, offset, out);
                Ok(read.map_err(|problem| SafetensorsError::new(path, SafetensorsProblem::File(problem)))?)
            }
            Origin::Experts(parts) => Ok(self.read_stacked(parts, offset, out)?),
            _ => Ok(false),
        }
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        for (path, _, storage) in &self.files {
            let changed = |problem| SafetensorsError::new(path, SafetensorsProblem::File(problem));
            storage.check().map_err(changed)?;
        }
        Ok(())
    }

    fn tokenizer_json(&self) -> Option<PathBuf> {
        self.tokenizer_json()
    }
}
