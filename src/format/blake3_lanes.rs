//! BLAKE3 of many short things at once: blocks of a file, or files.
//!
//! A processor hashes up to sixteen of BLAKE3's chunks in one go, but those of one block of 8 KiB are eight, and the levels
//! above them four, two and one. So the chunks of several blocks are hashed together, then their parents, level by level: with
//! AVX-512 twice as fast as block by block (decision 36). Files are as blocks of different lengths. The tree, its constants and
//! its flags are those of the BLAKE3 paper, 2.1 to 2.4.

use super::digest::{BlockDigest, CHUNK, block_digest};
use blake3::{IncrementCounter, platform::Platform};

/// Bytes of a value.
const VALUE: usize = size_of::<BlockDigest>();
/// Bytes that one input of a level has: a chunk, or two values.
const INPUT: usize = CHUNK as usize;
const PAIR: usize = 2 * VALUE;

const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
/// Chunks of one file that are hashed together, if it has so many; the first ones of shorter files are with those of others.
const LANES: usize = 16;

/// Is it worth it for blocks of so many bytes? Longer ones fill all lanes each by itself.
pub(super) fn are_short(block: u64) -> bool {
    block < 64 * CHUNK
}

/// The chaining values of blocks of `block` bytes, a power of two of at least 1,024 that [`are_short`]. `data` is whole blocks,
/// and starts `offset` bytes, a multiple of 1,024, into its file.
pub(super) fn chaining_values(data: &[u8], offset: u64, block: u64) -> Vec<BlockDigest> {
    let mut count = data.len() / INPUT;
    let mut forest = Forest::of(count);
    forest.run(data, offset / CHUNK, 0);
    for _ in 0..(block / CHUNK).trailing_zeros() {
        forest.parents(&[(0, count)], PARENT);
        count /= 2;
    }
    forest.values.truncate(count);
    forest.values
}

/// The chunks of one content, and where their values stand among those of all.
#[derive(Clone, Copy)]
struct HashTree<'a> {
    data: &'a [u8],
    start: usize,
}

impl HashTree<'_> {
    fn count(&self) -> usize {
        self.data.len().div_ceil(INPUT)
    }

    /// Those of 1,024 bytes.
    fn whole(&self) -> usize {
        self.data.len() / INPUT
    }
}

/// BLAKE3 of each of these.
pub(super) fn hashes(contents: &[&[u8]]) -> Vec<[u8; VALUE]> {
    let mut trees = Vec::with_capacity(contents.len());
    let mut start = 0;
    for data in contents {
        let tree = HashTree { data, start };
        start += tree.count();
        trees.push(tree);
    }
    let mut forest = Forest::of(start);
    let branched = || trees.iter().filter(|tree| tree.count() > 1);
    branched().for_each(|tree| forest.long(tree));
    (0..LANES).for_each(|at| {
        forest.chunks(
            at,
            branched().filter(|tree| (at + 1..LANES).contains(&tree.whole())),
        )
    });
    let mut level: Vec<(usize, usize)> =
        branched().map(|tree| (tree.start, tree.count())).collect();
    loop {
        level.retain(|(_, count)| *count > 2);
        if level.is_empty() {
            break;
        }
        forest.parents(&level, PARENT);
        level
            .iter_mut()
            .for_each(|(_, count)| *count = count.div_ceil(2));
    }
    forest.parents(
        &branched().map(|tree| (tree.start, 2)).collect::<Vec<_>>(),
        PARENT | ROOT,
    );
    let root = |tree: &HashTree<'_>| match tree.count() {
        0 | 1 => blake3::hash(tree.data).into(),
        _ => forest.values[tree.start],
    };
    trees.iter().map(root).collect()
}

/// Values of chunks of many trees, of which those of parents take the place.
struct Forest {
    platform: Platform,
    values: Vec<BlockDigest>,
    out: Vec<u8>,
}

impl Forest {
    /// Of so many chunks.
    fn of(chunks: usize) -> Self {
        Self {
            platform: Platform::detect(),
            values: vec![[0; VALUE]; chunks],
            out: Vec::new(),
        }
    }

    /// Chunks that follow each other, from number `first` of their file on; their values are to stand at `start`.
    fn run(&mut self, data: &[u8], first: u64, start: usize) {
        let chunks: Vec<&[u8; INPUT]> = data.as_chunks().0.iter().collect();
        let out = self.values[start..][..chunks.len()].as_flattened_mut();
        self.platform.hash_many(
            &chunks,
            &IV,
            first,
            IncrementCounter::Yes,
            0,
            CHUNK_START,
            CHUNK_END,
            out,
        );
    }

    /// The chunks of a tree that are hashed with no others: of a long one all that are whole, and one that is not.
    fn long(&mut self, tree: &HashTree<'_>) {
        let (HashTree { data, start }, whole) = (*tree, tree.whole());
        if whole >= LANES {
            self.run(data, 0, start);
        }
        if whole < tree.count() {
            self.values[start + whole] =
                block_digest(&data[whole * INPUT..], (whole * INPUT) as u64);
        }
    }

    /// Chunk `at` of all these trees.
    fn chunks<'a>(&mut self, at: usize, trees: impl Iterator<Item = &'a HashTree<'a>> + Clone) {
        let chunk = |tree: &HashTree<'a>| tree.data.as_chunks().0.get(at);
        let chunks: Vec<&[u8; INPUT]> = trees.clone().filter_map(chunk).collect();
        self.out.resize(chunks.len() * VALUE, 0);
        let number = at as u64;
        self.platform.hash_many(
            &chunks,
            &IV,
            number,
            IncrementCounter::No,
            0,
            CHUNK_START,
            CHUNK_END,
            &mut self.out,
        );
        for (tree, value) in trees.zip(self.out.as_chunks().0) {
            self.values[tree.start + at] = *value;
        }
    }

    /// Put parents in the place of the values of their children: of each tree `(start, count)`. One that has no sibling moves up.
    fn parents(&mut self, level: &[(usize, usize)], flags: u8) {
        let of =
            |(start, count): &(usize, usize)| self.values[*start..][..*count].as_chunks::<2>().0;
        let pairs = level
            .iter()
            .flat_map(of)
            .filter_map(|pair| pair.as_flattened().first_chunk());
        let pairs: Vec<&[u8; PAIR]> = pairs.collect();
        self.out.resize(pairs.len() * VALUE, 0);
        self.platform.hash_many(
            &pairs,
            &IV,
            0,
            IncrementCounter::No,
            flags,
            0,
            0,
            &mut self.out,
        );
        let mut parents = self.out.as_chunks().0.iter();
        for (start, count) in level {
            let values = &mut self.values[*start..][..*count];
            values
                .iter_mut()
                .take(count / 2)
                .zip(&mut parents)
                .for_each(|(value, parent)| *value = *parent);
            if count % 2 == 1 {
                values[count / 2] = values[count - 1];
            }
        }
    }
}
