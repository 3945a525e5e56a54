# The roles of k8s/README.md, "Roles", which says why each is needed; a test compares the two lists. One file for each holder.
# Names of datasets, jobs and streams come from the variables, so that what is made is known before anything exists.

locals {
  principals = "principal://iam.googleapis.com/projects/${var.cluster_number}/locations/global/workloadIdentityPools/${var.workload_pool}/subject"
  objects    = "projects/_/buckets/${var.bucket}/objects"
}

# Nodes

resource "google_project_iam_member" "nodes" {
  for_each = toset(["roles/container.defaultNodeServiceAccount", "roles/serviceusage.serviceUsageConsumer"])
  project  = var.cluster_project
  role     = each.key
  member   = var.node_account.member
}

resource "google_artifact_registry_repository_iam_member" "nodes" {
  for_each   = toset(["own", "docker_hub"])
  project    = var.cluster_project
  location   = var.region
  repository = var.images[each.key]
  role       = "roles/artifactregistry.reader"
  member     = var.node_account.member
}

# Airflow

resource "google_project_iam_member" "airflow" {
  for_each = toset(["roles/composer.worker", "roles/bigquery.jobUser"])
  project  = var.project
  role     = each.key
  member   = var.airflow_account.member
}

resource "google_project_iam_member" "airflow_cluster" {
  project = var.cluster_project
  role    = "roles/container.clusterViewer"
  member  = var.airflow_account.member
}

resource "google_storage_bucket_iam_member" "airflow" {
  for_each = toset(["roles/storage.objectUser", "roles/storage.legacyBucketReader"])
  bucket   = var.bucket
  role     = each.key
  member   = var.airflow_account.member
}

resource "google_bigquery_dataset_iam_member" "airflow_reads" {
  count      = length(var.source_datasets)
  project    = var.project
  dataset_id = var.source_datasets[count.index]
  role       = "roles/bigquery.dataViewer"
  member     = var.airflow_account.member
}

resource "google_bigquery_dataset_iam_member" "airflow_writes" {
  count      = length(var.target_datasets)
  project    = var.project
  dataset_id = var.target_datasets[count.index]
  role       = "roles/bigquery.dataEditor"
  member     = var.airflow_account.member
}

resource "google_artifact_registry_repository_iam_member" "airflow" {
  for_each   = toset(["wheels", "pypi", "all"])
  project    = var.project
  location   = var.region
  repository = var.packages[each.key]
  role       = "roles/artifactregistry.reader"
  member     = var.airflow_account.member
}

# You

resource "google_service_account_iam_member" "operators" {
  for_each           = { for pair in setproduct(["nodes", "airflow"], var.operators) : join("/", pair) => pair }
  service_account_id = { nodes = var.node_account.name, airflow = var.airflow_account.name }[each.value[0]]
  role               = "roles/iam.serviceAccountUser"
  member             = each.value[1]
}

output "airflow_ready" {
  description = "The address of Airflow's account, once it has its roles: an environment that is made before them fails after half an hour."
  value       = var.airflow_account.email
  depends_on = [
    google_project_iam_member.airflow, google_artifact_registry_repository_iam_member.airflow,
    google_storage_bucket_iam_member.airflow, google_service_account_iam_member.operators,
  ]
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    storage_bucket_iam_member_jobs_create           = google_storage_bucket_iam_member.jobs_create
    storage_bucket_iam_member_jobs_read             = google_storage_bucket_iam_member.jobs_read
    project_iam_member_nodes                        = google_project_iam_member.nodes
    artifact_registry_repository_iam_member_nodes   = google_artifact_registry_repository_iam_member.nodes
    project_iam_member_airflow                      = google_project_iam_member.airflow
    project_iam_member_airflow_cluster              = google_project_iam_member.airflow_cluster
    storage_bucket_iam_member_airflow               = google_storage_bucket_iam_member.airflow
    bigquery_dataset_iam_member_airflow_reads       = google_bigquery_dataset_iam_member.airflow_reads
    bigquery_dataset_iam_member_airflow_writes      = google_bigquery_dataset_iam_member.airflow_writes
    artifact_registry_repository_iam_member_airflow = google_artifact_registry_repository_iam_member.airflow
    service_account_iam_member_operators            = google_service_account_iam_member.operators
    pubsub_subscription_iam_member_subscribers      = google_pubsub_subscription_iam_member.subscribers
    pubsub_topic_iam_member_subscribers             = google_pubsub_topic_iam_member.subscribers
    storage_bucket_iam_member_files_create          = google_storage_bucket_iam_member.files_create
    storage_bucket_iam_member_files_read            = google_storage_bucket_iam_member.files_read
    project_iam_member_adapter                      = google_project_iam_member.adapter
    project_iam_member_adapter_writes               = google_project_iam_member.adapter_writes
    project_iam_member_database                     = google_project_iam_member.database
    service_account_iam_member_database             = google_service_account_iam_member.database
  }
}
