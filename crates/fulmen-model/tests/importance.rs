//! Importance matrices: both formats, what is refused, and which values weight which errors.

use std::{collections::BTreeMap, fs, ops::ControlFlow, path::Path, sync::Arc};

use fulmen_core::{DType, quant};
use fulmen_model::gguf::{Array, GgufFile, GgufWriter, Metadata};
use fulmen_model::quantize::{Importance, QuantizeError, QuantizePlan, quantize};
use fulmen_model::source::TensorInfo;

/// An entry: its name, and for each matrix the sums and how many rows were summed.
type Entry = (&'static str, Vec<(Vec<f32>, f32)>);

fn metadata(kind: &str) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.type", kind);
    metadata.set("imatrix.datasets", Array::strings(["wiki.txt", "code.txt"]));
    metadata.set("imatrix.chunk_count", 40u32);
    metadata.set("imatrix.chunk_size", 512u32);
    metadata
}

/// A GGUF file of F32 tensors.
fn file(metadata: &Metadata, tensors: &[(&str, &[usize], Vec<f32>)]) -> Vec<u8> {
    let info = |(name, dims, _): &(&str, &[usize], Vec<f32>)| TensorInfo::new(*name, dims, DType::F32);
    let infos: Vec<TensorInfo> = tensors.iter().map(|tensor| info(tensor).unwrap()).collect();
    let mut writer = GgufWriter::new(Vec::new(), metadata, &infos).unwrap();
    tensors.iter().for_each(|(name, _, data)| writer.write(name, bytemuck::cast_slice(data)).unwrap());
    writer.finish().unwrap()
}

fn gguf(entries: &[Entry]) -> Vec<u8> {
    let names: Vec<[String; 2]> =
        entries.iter().map(|(name, _)| [format!("{name}.in_sum2"), format!("{name}.counts")]).collect();
    let dims: Vec<[[usize; 2]; 2]> = entries
        .iter()
        .map(|(_, matrices)| [[matrices[0].0.len(), matrices.len()], [1, matrices.len()]])
        .collect();
    let mut tensors: Vec<(&str, &[usize], Vec<f32>)> = Vec::new();
    for ((names, dims), (_, matrices)) in names.iter().zip(&dims).zip(entries) {
        let sums = matrices.iter().flat_map(|(sums, _)| sums.clone()).collect();
        tensors.push((&names[0], &dims[0], sums));
        tensors.push((&names[1], &dims[1], matrices.iter().map(|(_, count)| *count).collect()));
    }
    file(&metadata("imatrix"), &tensors)
}

/// The older format under construction: fields in order.
#[derive(Clone, Default)]
struct Legacy(Vec<u8>);

impl Legacy {
    fn i32(mut self, number: i32) -> Legacy {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Legacy {
        self = self.i32(text.len().try_into().unwrap());
        self.0.extend(text.as_bytes());
        self
    }

    fn entry(self, name: &str, sums: i32, values: &[f32]) -> Legacy {
        let mut legacy = self.text(name).i32(sums).i32(values.len().try_into().unwrap());
        values.iter().for_each(|value| legacy.0.extend(value.to_le_bytes()));
        legacy
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn read(&self) -> Result<Importance, String> {
        read(self.0.clone())
    }

    fn refused(&self) -> String {
        self.read().unwrap_err()
    }
}

fn read(bytes: Vec<u8>) -> Result<Importance, String> {
    Importance::from_bytes(Arc::new(bytes)).map_err(|error| error.to_string())
}

fn entries(importance: &Importance) -> BTreeMap<&str, &[f32]> {
    importance.entries().collect()
}

#[test]
fn both_formats_give_the_mean_squares() {
    let columns = vec![4.0, 0.0, 10.0];
    let experts = vec![(vec![8.0, 2.0], 4.0), (vec![5.0, 5.0], 0.0), (vec![3.0, 9.0], 3.0)];
    let importance = read(gguf(&[("b", experts), ("a", vec![(columns, 2.0)])])).unwrap();
    let expected = [("a", &[2.0, 0.0, 5.0][..]), ("b", &[2.0, 0.5, 1.0, 1.0, 1.0, 3.0])];
    assert_eq!(entries(&importance), expected.into());
    assert_eq!(importance.datasets(), ["wiki.txt", "code.txt"]);
    assert_eq!(importance.chunks(), Some(40));

    let legacy = Legacy::default().i32(2).entry("b", 2, &[4.0, 1.0]).entry("a", 0, &[0.5, 7.0, 2.0]);
    let expected = [("a", &[0.5, 7.0, 2.0][..]), ("b", &[2.0, 0.5])];
    let importance = legacy.read().unwrap();
    assert_eq!(entries(&importance), expected.into());
    assert_eq!((importance.datasets(), importance.chunks()), (&[][..], None));
    let importance = legacy.clone().i32(7).read().unwrap();
    assert_eq!((importance.datasets(), importance.chunks()), (&[][..], Some(7)));
    let importance = legacy.i32(7).text("wiki.txt").read().unwrap();
    assert_eq!(entries(&importance), expected.into());
    assert_eq!((importance.datasets(), importance.chunks()), (&["wiki.txt".to_owned()][..], Some(7)));
}

#[test]
fn files_are_read_as_bytes_are() {
    let folder = tempfile::tempdir().unwrap();
    let legacy = Legacy::default().i32(1).entry("a", 3, &[3.0; 40_000]);
    for (name, bytes) in [("a.gguf", gguf(&[("a", vec![(vec![2.0], 2.0)])])), ("a.dat", legacy.0)] {
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let importance = Importance::open(&path).unwrap();
        assert_eq!(importance.path(), path);
        assert_eq!(entries(&importance), entries(&read(bytes).unwrap()));
        assert!(entries(&importance)["a"].iter().all(|value| *value == 1.0));
    }
    let said = |path: &Path| Importance::open(path).unwrap_err().to_string();
    let folder_path = folder.path().display();
    assert_eq!(said(folder.path()), format!("{folder_path}: is a directory, not a file"));
    let missing = said(&folder.path().join("missing"));
    assert!(missing.starts_with(&format!("{folder_path}/missing: cannot open it: ")), "{missing}");
    for (bytes, problem) in
        [(&b""[..], "the number of entries at byte 0 needs 4 bytes, 0 left"), (b"GGUF", "")]
    {
        let path = folder.path().join("short");
        fs::write(&path, bytes).unwrap();
        let said = said(&path);
        assert!(said.contains("short: is truncated") && said.contains(problem), "{said}");
    }
}

#[test]
fn damaged_gguf_files_are_refused_by_name() {
    let refused = |metadata: &Metadata, tensors: &[(&str, &[usize], Vec<f32>)]| {
        read(file(metadata, tensors)).unwrap_err()
    };
    let good = metadata("imatrix");
    let sums = |dims: &'static [usize], values: Vec<f32>| ("a.in_sum2", dims, values);
    let counts = |dims: &'static [usize], values: Vec<f32>| ("a.counts", dims, values);
    for (kind, found) in [("model", "\"model\""), ("", "\"\"")] {
        assert_eq!(
            refused(&metadata(kind), &[]),
            format!("memory: is not an importance matrix: general.type is {found}, expected \"imatrix\"")
        );
    }
    let none = refused(&Metadata::new(), &[]);
    assert!(none.ends_with("general.type is missing, expected \"imatrix\""), "{none}");
    assert_eq!(refused(&good, &[]), "memory: has no entries");
    assert_eq!(refused(&good, &[("a.in_sum", &[2], vec![1.0; 2])]), "memory: has no entries");
    assert_eq!(refused(&good, &[sums(&[2], vec![1.0; 2])]), "memory: entry \"a\" has no tensor a.counts");
    assert_eq!(refused(&good, &[counts(&[1], vec![1.0])]), "memory: entry \"a\" has no tensor a.in_sum2");
    for (of_sums, of_counts) in
        [(&[2, 3][..], &[1][..]), (&[2], &[1, 3]), (&[2, 3], &[3]), (&[2, 3], &[3, 3])]
    {
        let count = |dims: &[usize]| vec![1.0; dims.iter().product()];
        let said = refused(
            &good,
            &[("a.in_sum2", of_sums, count(of_sums)), ("a.counts", of_counts, count(of_counts))],
        );
        let shapes = format!("entry \"a\" has sums of shape {of_sums:?} and counts of shape {of_counts:?}");
        assert_eq!(said, format!("memory: {shapes}"));
    }
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let said = refused(&good, &[sums(&[2, 2], vec![1.0, 1.0, 1.0, bad]), counts(&[1, 2], vec![1.0; 2])]);
        let expected = format!("entry \"a\": value 3 is {bad}; expected a finite number of at least 0");
        assert_eq!(said, format!("memory: {expected}"));
        let said = refused(&good, &[sums(&[2, 2], vec![1.0; 4]), counts(&[1, 2], vec![1.0, bad])]);
        let expected = format!("entry \"a\": count 1 is {bad}; expected a finite number of at least 0");
        assert_eq!(said, format!("memory: {expected}"));
    }
    let said = refused(&good, &[sums(&[1], vec![1e30]), counts(&[1], vec![1e-30])]);
    assert!(said.contains("entry \"a\": value 0 is inf"), "{said}");
    for (key, kind) in [("imatrix.datasets", "an array of strings"), ("imatrix.chunk_count", "u32")] {
        let mut wrong = metadata("imatrix");
        wrong.set(key, true);
        let said = refused(&wrong, &[sums(&[1], vec![1.0]), counts(&[1], vec![1.0])]);
        assert!(said.starts_with(&format!("memory: metadata key {key:?} must be ")), "{kind}: {said}");
    }
    let tensors = [("a.in_sum2", DType::F16), ("a.counts", DType::F32)];
    let infos = tensors.map(|(name, dtype)| TensorInfo::new(name, &[1], dtype).unwrap());
    let mut writer = GgufWriter::new(Vec::new(), &good, &infos).unwrap();
    infos.iter().for_each(|info| writer.write(info.name(), &vec![0; info.bytes()]).unwrap());
    let said = read(writer.finish().unwrap()).unwrap_err();
    assert_eq!(said, "memory: tensor \"a.in_sum2\" must be F32, is F16");
}

#[test]
fn damaged_files_of_the_older_format_are_refused_by_name() {
    let new = Legacy::default;
    let entry = |sums, values: &[f32]| new().i32(1).entry("a", sums, values);
    assert_eq!(new().i32(0).refused(), "memory: has no entries");
    for (count, left) in [(-1, 0), (i32::MIN, 0), (i32::MAX, 0), (2, 17)] {
        let file = if left == 0 { new().i32(count) } else { new().i32(count).entry("a", 1, &[1.0]) };
        let expected = format!("it would have {count} entries in {left} bytes");
        assert_eq!(file.refused(), format!("memory: is not an importance matrix, or damaged: {expected}"));
    }
    // Every end but those after an entry, after the chunks and after the name of the text.
    let whole = entry(2, &[1.0, 2.0]).i32(7).text("wiki");
    let ends = [whole.0.len() - 12, whole.0.len() - 8, whole.0.len()];
    for end in 0..=whole.0.len() {
        let result = read(whole.bytes()[..end].to_vec());
        assert_eq!(result.is_ok(), ends.contains(&end), "{end}");
        if let Err(said) = result {
            assert!(said.contains(" left") || said.contains(" entries in "), "{end}: {said}");
        }
    }
    let mut more = whole.clone();
    more.0.extend([0; 3]);
    assert_eq!(more.refused(), "memory: has 3 bytes after its end");

    let pad = [1.0; 8];
    assert_eq!(
        new().i32(1).i32(0).entry("b", 1, &pad).refused(),
        "memory: the length of the name of entry 0 is 0; expected at least 1"
    );
    let negative = new().i32(1).i32(-4).entry("b", 1, &pad).refused();
    assert_eq!(negative, "memory: the length of the name of entry 0 is -4; expected at least 1");
    let long = new().i32(1).text(&"x".repeat(65_536)).i32(1).i32(1).i32(0).refused();
    assert_eq!(long, "memory: the name of entry 0 has 65536 bytes; expected at most 65535");
    let truncated = new().i32(1).i32(65_537).entry("b", 1, &pad).refused();
    assert!(truncated.contains("the name of entry 0 at byte 8 needs 65537 bytes, "), "{truncated}");
    let mut wrong = entry(1, &pad);
    wrong.0[8] = 0xff;
    assert_eq!(wrong.refused(), "memory: the name of entry 0 is not UTF-8");
    assert_eq!(
        new().i32(2).entry("a", 1, &pad).entry("a", 1, &pad).refused(),
        "memory: duplicate entry \"a\""
    );
    assert_eq!(
        entry(-1, &pad).refused(),
        "memory: the number of sums of entry \"a\" is -1; expected at least 0"
    );
    for count in [0, -1, i32::MIN] {
        let mut file = new().i32(1).text("a").i32(1).i32(count);
        file.0.extend([0; 16]);
        let expected = format!("the number of values of entry \"a\" is {count}; expected at least 1");
        assert_eq!(file.refused(), format!("memory: {expected}"));
    }
    let mut huge = new().i32(1).text("a").i32(1).i32(i32::MAX);
    huge.0.extend([0; 16]);
    let said = huge.refused();
    assert!(said.contains("the values of entry \"a\" at byte 17 needs 8589934588 bytes, 16 left"), "{said}");
    for bad in [f32::NAN, f32::INFINITY, -0.5] {
        let said = entry(1, &[1.0, bad, 1.0]).refused();
        let expected = format!("entry \"a\": value 1 is {bad}; expected a finite number of at least 0");
        assert_eq!(said, format!("memory: {expected}"));
    }
    let chunks = entry(1, &pad).i32(-3).refused();
    assert_eq!(chunks, "memory: the number of chunks is -3; expected at least 0");
}

/// Values that no pattern repeats.
fn values(count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(5);
    (0..count).map(|_| random.f32() + random.f32() + random.f32() - 1.5).collect()
}

/// A model of matrices with these shapes.
fn model(tensors: &[(&'static str, &[usize])]) -> GgufFile {
    let tensors: Vec<_> =
        tensors.iter().map(|(name, dims)| (*name, *dims, values(dims.iter().product()))).collect();
    GgufFile::from_bytes(Arc::new(file(&Metadata::new(), &tensors))).unwrap()
}

fn run(source: &GgufFile, plan: &QuantizePlan, threads: usize) -> GgufFile {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    quantize(source, plan, &out, false, threads, |_| ControlFlow::Continue(())).unwrap();
    GgufFile::open(out).unwrap()
}

/// Every row is weighted by the values of its matrix, whatever the ranges that are converted at a time, and
/// the bits are the same on any number of threads.
#[test]
fn every_row_has_the_importance_of_its_matrix() {
    const WIDTH: usize = 768;
    // The last tensor is converted in several ranges, whose borders are inside rows.
    let shapes: [(&str, &[usize]); 3] = [
        ("blk.0.ffn_up.weight", &[WIDTH, 5]),
        ("blk.0.ffn_down_exps.weight", &[WIDTH, 3, 4]),
        ("blk.0.ffn_gate_exps.weight", &[WIDTH, 701, 5]),
    ];
    let source = model(&shapes);
    let draw = |seed: u64, matrices: usize| {
        let mut random = fastrand::Rng::with_seed(seed);
        let sums = |random: &mut fastrand::Rng| (0..WIDTH).map(|_| 10f32.powf(4.0 * random.f32())).collect();
        (0..matrices).map(|_| (sums(&mut random), 3.0)).collect::<Vec<(Vec<f32>, f32)>>()
    };
    let all = [draw(1, 1), draw(2, 4), draw(3, 5)];
    let named: Vec<Entry> = shapes.iter().zip(&all).map(|(shape, all)| (shape.0, all.clone())).collect();
    let importance = read(gguf(&named)).unwrap();
    let plan = QuantizePlan::of(&source, "q4_k".parse().unwrap()).unwrap();
    let plan = plan.with_importance(&source, &importance).unwrap();
    let files = [1, 2, 5].map(|threads| run(&source, &plan, threads));
    for (name, dims) in shapes {
        let values = source.data(name).unwrap();
        let values: Vec<f32> = values.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let matrices = entries(&importance)[name];
        let mut expected = Vec::new();
        for (row, values) in values.chunks(WIDTH).enumerate() {
            let mut bytes = vec![0; DType::Q4_K.bytes(WIDTH).unwrap()];
            let importance = &matrices[row / dims[1] * WIDTH..][..WIDTH];
            quant::quantize_weighted(DType::Q4_K, values, importance, &mut bytes).unwrap();
            expected.extend(bytes);
        }
        assert!(expected != quant::quantize_to_vec(DType::Q4_K, &values).unwrap(), "{name}");
        for file in &files {
            assert!(file.data(name).unwrap()[..] == expected, "{name}");
        }
    }
}

/// One set of values for the columns serves all experts.
#[test]
fn experts_can_share_their_importance() {
    let name = "blk.0.ffn_up_exps.weight";
    let source = model(&[(name, &[64, 3, 4])]);
    let columns: Vec<f32> = (0..64).map(|i| if i % 7 == 0 { 50.0 } else { 0.5 }).collect();
    let one = Legacy::default().i32(1).entry(name, 1, &columns).read().unwrap();
    let each = Legacy::default().i32(1).entry(name, 1, &columns.repeat(4)).read().unwrap();
    let plan = QuantizePlan::of(&source, "q4_0".parse().unwrap()).unwrap();
    let [one, each] = [one, each].map(|importance| {
        let plan = plan.clone().with_importance(&source, &importance).unwrap();
        run(&source, &plan, 2).data(name).unwrap().to_vec()
    });
    assert!(one == each);
    assert!(one != run(&source, &plan, 2).data(name).unwrap().to_vec());
}

#[test]
fn the_plan_says_what_has_no_importance() {
    let source = model(&[
        ("token_embd.weight", &[64, 2]),
        ("blk.0.ffn_up.weight", &[64, 2]),
        ("blk.0.ffn_down.weight", &[64, 2]),
        ("blk.0.attn_norm.weight", &[64]),
    ]);
    let importance = Legacy::default()
        .i32(3)
        .entry("blk.0.ffn_up.weight", 1, &[1.0; 64])
        .entry("blk.0.ffn_down.weight", 1, &[1.0; 64])
        .entry("blk.1.ffn_up.weight", 1, &[1.0; 64])
        .i32(9)
        .text("wiki.txt")
        .read()
        .unwrap();
    let types = [("ffn_down".to_owned(), DType::Q8_0)];
    let plan = QuantizePlan::with_types(&source, "q4_0".parse().unwrap(), &types).unwrap();
    let plan = plan.with_importance(&source, &importance).unwrap();
    // The embedding is also the output matrix, in Q6_K, which its rows do not fit: Q8_0 has no search.
    assert_eq!(plan.without_importance, [""; 0]);
    assert_eq!(plan.unused_importance, ["blk.1.ffn_up.weight"]);
    let uses = |name: &str| plan.uses_importance(name);
    assert!(uses("blk.0.ffn_up.weight") && !uses("blk.0.ffn_down.weight") && !uses("token_embd.weight"));
    let keys = run(&source, &plan, 1).metadata().clone();
    assert_eq!(keys.string("quantize.imatrix.file"), Ok("memory"));
    assert_eq!(keys.string("quantize.imatrix.dataset"), Ok("wiki.txt"));
    assert_eq!(keys.u32("quantize.imatrix.entries_count"), Ok(3));
    assert_eq!(keys.u32("quantize.imatrix.chunks_count"), Ok(9));

    let plan =
        QuantizePlan::with_types(&source, "q4_0".parse().unwrap(), &[("embd".to_owned(), DType::Q5_0)]);
    let plan = plan.unwrap().with_importance(&source, &importance).unwrap();
    assert_eq!(plan.without_importance, ["token_embd.weight"]);
    // What is copied is not weighted.
    let plan = QuantizePlan::of(&source, "f32".parse().unwrap()).unwrap();
    let plan = plan.with_importance(&source, &importance).unwrap();
    assert!(!plan.uses_importance("blk.0.ffn_up.weight") && plan.without_importance.is_empty());
}

#[test]
fn entries_of_another_model_are_refused() {
    let names = ["blk.0.ffn_up.weight", "blk.0.ffn_up_exps.weight"];
    let source = model(&[(names[0], &[64, 2]), (names[1], &[64, 2, 3])]);
    for (name, count, expected) in [
        (names[0], 63, "64"),
        (names[0], 128, "64"),
        (names[1], 128, "64 or 3 x 64"),
        (names[1], 193, "64 or 3 x 64"),
    ] {
        let importance = Legacy::default().i32(1).entry(name, 1, &vec![1.0; count]).read().unwrap();
        let plan = QuantizePlan::of(&source, "q4_0".parse().unwrap()).unwrap();
        let refused = plan.with_importance(&source, &importance).unwrap_err();
        assert!(matches!(refused, QuantizeError::Importance { .. }), "{refused:?}");
        let said = refused.to_string();
        assert!(said.starts_with(&format!("tensor {name} [")), "{said}");
        let ends = format!("the importance matrix has {count} values, expected {expected}");
        assert!(said.ends_with(&ends), "{said}");
    }
}
