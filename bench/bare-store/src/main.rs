//! bare-store up|down BUCKET KEY FILE: sends or fetches one file with 16 parts of 8 MiB in flight, and nothing else.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{
    ObjectStore, ObjectStoreExt, PutPayload, aws::AmazonS3Builder, multipart::MultipartStore,
    path::Path,
};
use std::{env, error::Error, fs::File, os::unix::fs::FileExt, sync::Arc};

const PART_BYTES: u64 = 8 << 20;
const IN_FLIGHT: usize = 16;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [way, bucket, key, file] = &words[..] else {
        return Err("bare-store up|down BUCKET KEY FILE".into());
    };
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let store = AmazonS3Builder::from_env()
        .with_endpoint(env::var("AWS_ENDPOINT_URL")?)
        .with_allow_http(true)
        .with_bucket_name(bucket)
        .build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let key = Path::from(key.as_str());
    match &way[..] {
        "up" => runtime.block_on(upload(store, &key, file)),
        _ => runtime.block_on(download(store, &key, file)),
    }
}

async fn upload<S: MultipartStore>(store: S, key: &Path, file: &str) -> Outcome<()> {
    let file = Arc::new(File::open(file)?);
    let length = file.metadata()?.len();
    let id = store.create_multipart(key).await?;
    let parts = stream::iter(0..length.div_ceil(PART_BYTES)).map(|part| {
        let (file, store, id) = (file.clone(), &store, &id);
        async move {
            let bytes = tokio::task::spawn_blocking(move || read_part(&file, part, length)).await??;
            let index = usize::try_from(part)?;
            Ok::<_, Box<dyn Error + Send + Sync>>(
                store.put_part(key, id, index, PutPayload::from(bytes)).await?,
            )
        }
    });
    let parts = parts.buffered(IN_FLIGHT).try_collect().await?;
    store.complete_multipart(key, &id, parts).await?;
    Ok(())
}

fn read_part(file: &File, part: u64, length: u64) -> Outcome<Bytes> {
    let offset = part * PART_BYTES;
    let len = PART_BYTES.min(length - offset);
    let mut bytes = vec![0; usize::try_from(len)?];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes.into())
}

async fn download<S: ObjectStore>(store: S, key: &Path, file: &str) -> Outcome<()> {
    let length = store.head(key).await?.size;
    let file = Arc::new(File::create(file)?);
    let parts = stream::iter(0..length.div_ceil(PART_BYTES)).map(|part| {
        let (file, store) = (file.clone(), &store);
        async move {
            let offset = part * PART_BYTES;
            let bytes = store.get_range(key, offset..length.min(offset + PART_BYTES)).await?;
            tokio::task::spawn_blocking(move || file.write_all_at(&bytes, offset)).await??;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        }
    });
    parts.buffer_unordered(IN_FLIGHT).try_collect::<Vec<()>>().await?;
    Ok(())
}
