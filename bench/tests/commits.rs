//! The count of durable commits is a promise, not a figure.

use overwinter_bench::sections::commits;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspend_and_resume_make_as_many_durable_commits_as_promised() -> anyhow::Result<()> {
    for (depth, promised) in commits::PROMISED {
        let folder = tempfile::tempdir()?;
        let commits = commits::count(folder.path(), depth).await?;
        assert_eq!(commits, promised, "at {}", depth.as_str());
    }
    Ok(())
}
