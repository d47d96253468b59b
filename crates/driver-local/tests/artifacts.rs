//! Memory on disk that is not what was written, or does not belong to what is there: refused with the
//! reason, before anything runs; and the sandbox starts all the same.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{Bed, Outcome, credentials, runsc, sandbox, until};
use overwinter_driver::{
    Compute, Depth, Driver, DriverError, DriverReference, Effected, Observed, Unusable,
};
use overwinter_lifecycle::ids::{Incarnation, SandboxId};
use serde_json::Value;

const COUNTING: &str = "n=0; head -c 3000000 /dev/urandom > /dev/shm/noise; while true; do n=$((n+1)); \
    echo $n > /workspace/.n; mv /workspace/.n /workspace/count; sleep 0.02; done";

/// A sandbox whose memory is on disk.
struct Asleep {
    bed: Bed,
    id: SandboxId,
    taken: Effected,
    folder: PathBuf,
    fence: u64,
}

impl Asleep {
    async fn new(runtime: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let bed = Bed::on(runtime, COUNTING).await?;
        let (id, taken) = Self::taken_in(&bed).await?;
        let name = bed.effect(id, 2, 1).key.native_name();
        let folder = bed.artifacts(id).join(name);
        Ok(Self {
            bed,
            id,
            taken,
            folder,
            fence: 2,
        })
    }

    async fn taken_in(bed: &Bed) -> Result<(SandboxId, Effected), Box<dyn std::error::Error>> {
        let id = sandbox();
        bed.driver
            .create(&bed.effect(id, 1, 1), &bed.spec(), &credentials(id, 1))
            .await?;
        until("it counts", || bed.number(id, "count") > 2).await?;
        let taken = bed
            .driver
            .suspend(&bed.effect(id, 2, 1), Depth::Checkpoint)
            .await?;
        Ok((id, taken))
    }

    async fn resume(&mut self, reference: &DriverReference) -> Result<Effected, DriverError> {
        self.fence += 1;
        let ctx = self.bed.effect(self.id, self.fence, self.fence);
        let credentials = credentials(self.id, self.fence);
        let driver = &self.bed.driver;
        driver
            .resume(&ctx, Depth::Checkpoint, reference, &credentials)
            .await
    }

    /// After `spoil`, a resume is refused for this reason, and nothing ran or is left. Then
    /// everything is as it was.
    async fn refused(&mut self, reason: &str, spoil: impl FnOnce(&Self) -> Outcome) -> Outcome {
        let kept = self.bed.folder.path().join("kept");
        let whole = self.bed.sandbox_dir(self.id);
        let files = ["key", "generation"];
        copy(&self.folder, &kept.join("artifact"))?;
        for file in files {
            fs::copy(whole.join(file), kept.join(file))?;
        }
        let count = self.bed.number(self.id, "count");
        spoil(self)?;

        let reference = self.taken.reference.clone();
        let refused = self.resume(&reference).await;
        let Err(DriverError::Unusable { message: why, .. } | DriverError::Missing(why)) = &refused
        else {
            return Err(format!("{reason}: {refused:?}").into());
        };
        assert!(why.contains(reason), "{why}");
        assert_eq!(self.bed.number(self.id, "count"), count, "{reason}: it ran");
        assert_eq!(self.bed.observed(self.id).await?, Observed::Absent);
        let volatile = self.bed.volatile_dir(self.id).join("memory");
        assert!(!volatile.exists(), "{reason}: plain memory is left");

        let _ = fs::remove_dir_all(&self.folder);
        copy(&kept.join("artifact"), &self.folder)?;
        for file in files {
            fs::copy(kept.join(file), whole.join(file))?;
        }
        fs::remove_dir_all(kept)?;
        Ok(())
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }
}

fn copy(from: &Path, to: &Path) -> Outcome {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn edit(folder: &Path, change: impl FnOnce(&mut Value)) -> Outcome {
    let path = folder.join("manifest.json");
    let mut manifest = serde_json::from_slice(&fs::read(&path)?)?;
    change(&mut manifest);
    fs::write(path, serde_json::to_vec(&manifest)?)?;
    Ok(())
}

fn flip(path: &Path, at: impl FnOnce(usize) -> usize) -> Outcome {
    let mut bytes = fs::read(path)?;
    let at = at(bytes.len());
    bytes[at] ^= 0x10;
    fs::write(path, bytes)?;
    Ok(())
}

fn cut(asleep: &Asleep, by: u64) -> Result<u64, Box<dyn std::error::Error>> {
    let image = fs::File::options().write(true).open(asleep.image())?;
    let left = image.metadata()?.len() - by;
    image.set_len(left)?;
    Ok(left)
}

#[tokio::test]
async fn what_is_not_what_was_written_is_refused_and_the_rest_is_restored() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut it = Asleep::new(&runsc).await?;
    let key = fs::metadata(it.bed.sandbox_dir(it.id).join("key"))?;
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    // Nothing of what was in its memory can be read off the disk.
    let image = fs::read(it.image())?;
    assert!(!image.windows(15).any(|at| at == b"/workspace/.n; "));

    it.refused("damaged", |it| flip(&it.image(), |length| length / 2))
        .await?;
    it.refused("damaged", |it| flip(&it.image(), |length| length - 1))
        .await?;
    it.refused("damaged", |it| flip(&it.image(), |_| 4)).await?;
    it.refused("shorter", |it| cut(it, 1).map(drop)).await?;
    it.refused("shorter", |it| {
        let left = cut(it, 100_000)?;
        edit(&it.folder, |manifest| manifest["size_bytes"] = left.into())
    })
    .await?;
    it.refused("not there", |it| Ok(fs::remove_dir_all(&it.folder)?))
        .await?;
    it.refused("not there", |it| Ok(fs::remove_file(it.image())?))
        .await?;
    it.refused("cannot be read", |it| {
        Ok(fs::write(it.folder.join("manifest.json"), "{}")?)
    })
    .await?;
    it.refused("format 7", |it| {
        edit(&it.folder, |manifest| manifest["format"] = 7.into())
    })
    .await?;
    it.refused("no other build", |it| {
        edit(&it.folder, |manifest| {
            manifest["head"]["belongs"]["runtime"] = "runsc of another day".into();
        })
    })
    .await?;
    it.refused("supervisor", |it| {
        edit(&it.folder, |manifest| {
            manifest["head"]["belongs"]["supervisor"] = "00ff".into();
        })
    })
    .await?;
    // More memory than it was made with: what is not bound to it is not in the manifest.
    it.refused("damaged", |it| {
        edit(&it.folder, |manifest| {
            manifest["head"]["belongs"]["spec"]["resources"]["memory_bytes"] = 0.into();
        })
    })
    .await?;
    it.refused("key", |it| {
        Ok(fs::remove_file(it.bed.sandbox_dir(it.id).join("key"))?)
    })
    .await?;
    it.refused("generation", |it| {
        Ok(fs::write(
            it.bed.sandbox_dir(it.id).join("generation"),
            "7",
        )?)
    })
    .await?;

    // Another's, as it is, and made to look like one's own.
    let (other, _) = Asleep::taken_in(&it.bed).await?;
    let name = it.bed.effect(other, 2, 1).key.native_name();
    let foreign = it.bed.artifacts(other).join(name);
    it.refused("another sandbox", |it| copy(&foreign, &it.folder))
        .await?;
    it.refused("damaged", |it| {
        let own = serde_json::from_slice::<Value>(&fs::read(it.folder.join("manifest.json"))?)?;
        copy(&foreign, &it.folder)?;
        edit(&it.folder, |manifest| {
            let belongs = &mut manifest["head"]["belongs"];
            for name in ["sandbox", "name"] {
                belongs[name] = own["head"]["belongs"][name].clone();
            }
        })
    })
    .await?;
    let mut wrong = it.taken.reference.clone();
    wrong.driver = "another".to_owned();
    assert!(matches!(
        it.resume(&wrong).await,
        Err(DriverError::Unusable {
            why: Unusable::Foreign,
            ..
        })
    ));

    // None of all that did it any harm.
    let count = it.bed.number(it.id, "count");
    let reference = it.taken.reference.clone();
    let resumed = it.resume(&reference).await?;
    let held = Incarnation(it.fence);
    assert_eq!(resumed.compute, Compute::Live { held });
    until("it goes on", || it.bed.number(it.id, "count") > count + 1).await?;
    for id in [it.id, other] {
        it.bed.driver.delete(&it.bed.effect(id, 99, 99)).await?;
    }
    assert_eq!(it.bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn memory_from_before_something_ran_is_refused_for_good() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut it = Asleep::new(&runsc).await?;
    let (id, reference) = (it.id, it.taken.reference.clone());
    it.fence = 10;
    let started = it
        .bed
        .driver
        .start(
            &it.bed.effect(id, 9, 9),
            &it.bed.spec(),
            &credentials(id, 9),
        )
        .await?;
    let name = it.bed.effect(id, 9, 9).key.native_name();
    let name = name.replace("-9-1", "-2-1");
    assert!(
        started.leftovers.iter().any(|debt| debt.reference == name),
        "it is owed by nobody: {started:?}"
    );
    it.bed
        .driver
        .suspend(&it.bed.effect(id, 10, 9), Depth::Stop)
        .await?;
    it.bed.restart()?;
    for reference in [reference, DriverReference::default()] {
        let refused = it.resume(&reference).await.err();
        let Some(DriverError::Unusable { message: why, .. } | DriverError::Missing(why)) = refused
        else {
            return Err(format!("{refused:?}").into());
        };
        assert!(
            why.contains("generation 1") || why.contains("not there"),
            "{why}"
        );
    }
    it.bed.driver.delete(&it.bed.effect(id, 20, 20)).await?;
    assert_eq!(it.bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_checkpoint_whose_answer_was_lost_is_found_again() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut it = Asleep::new(&runsc).await?;
    it.bed.restart()?;
    it.bed
        .driver
        .recover(it.id, std::time::Duration::from_secs(1))
        .await?;
    let count = it.bed.number(it.id, "count");
    it.resume(&DriverReference::default()).await?;
    until("it goes on", || it.bed.number(it.id, "count") > count + 1).await?;
    it.bed.driver.delete(&it.bed.effect(it.id, 9, 9)).await?;
    assert_eq!(it.bed.left(), Vec::<String>::new());
    Ok(())
}

/// What a resume has put in memory for the runtime is let go when that has taken it, and nobody waits
/// for that: the next checkpoint is not to lose its own for it.
#[tokio::test]
async fn memory_that_was_just_restored_is_written_anew_at_once() -> Outcome {
    const MEMORY: u64 = 48 << 20;
    let Some(runsc) = runsc() else { return Ok(()) };
    let counting = COUNTING.replace("3000000", &MEMORY.to_string());
    let bed = Bed::on(&runsc, &counting).await?;
    let (id, mut taken) = Asleep::taken_in(&bed).await?;
    let mut fence = 2;
    for _ in 0..6 {
        assert!(taken.size_bytes > MEMORY, "{taken:?}");
        fence += 1;
        let (resume, credentials) = (bed.effect(id, fence, fence), credentials(id, fence));
        let reference = taken.reference.clone();
        bed.driver
            .resume(&resume, Depth::Checkpoint, &reference, &credentials)
            .await?;
        fence += 1;
        let suspend = bed.effect(id, fence, fence);
        taken = bed.driver.suspend(&suspend, Depth::Checkpoint).await?;
    }
    assert!(taken.size_bytes > MEMORY, "{taken:?}");
    bed.driver.delete(&bed.effect(id, 20, 20)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// Whatever the runtime says: nothing can be restored from nothing, so nothing is ended for it.
#[tokio::test]
async fn a_runtime_that_says_well_and_writes_nothing_ends_nothing() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut bed = Bed::on(&runsc, COUNTING).await?;
    let path = bed.folder.path().join("runsc");
    let script = format!(
        "#!/bin/sh\nfor word in \"$@\"; do [ \"$word\" = checkpoint ] && exit 0; done\nexec {} \"$@\"\n",
        runsc.display()
    );
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    bed.config.runtime = path;
    bed.config.also = Vec::new();
    bed.restart()?;
    let id = sandbox();
    let create = bed.effect(id, 1, 1);
    bed.driver
        .create(&create, &bed.spec(), &credentials(id, 1))
        .await?;
    until("it counts", || bed.number(id, "count") > 2).await?;
    let suspend = bed.effect(id, 2, 1);
    let refused = bed.driver.suspend(&suspend, Depth::Checkpoint).await;
    let Err(DriverError::Rejected(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("has written none"), "{why}");
    let count = bed.number(id, "count");
    until("it goes on", || bed.number(id, "count") > count + 1).await?;
    bed.driver.delete(&bed.effect(id, 3, 3)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}
