locals {
  # AlloyDB knows users by the address of an account of Google. A stream that writes there acts as one, in everything that it does.
  databases = var.alloydb ? toset([for name, each in var.streams : name if each.files == null]) : toset([])
  subscribers = {
    for name, _ in var.streams : name =>
    contains(local.databases, name) ? var.streams_account.member : "${local.principals}/ns/nightshift/sa/${name}-subscriber"
  }
  folders = { for name, each in var.streams : name => each.files if each.files != null }
  adapter = "${local.principals}/ns/custom-metrics/sa/custom-metrics-stackdriver-adapter"
}

# Roles on the subscription: to pull, and to see whether its dead letters lead back to it.
resource "google_pubsub_subscription_iam_member" "subscribers" {
  for_each     = { for pair in setproduct(keys(var.streams), ["roles/pubsub.subscriber", "roles/pubsub.viewer"]) : join("/", pair) => pair }
  project      = var.project
  subscription = var.subscriptions[each.value[0]]
  role         = each.value[1]
  member       = local.subscribers[each.value[0]]
}

resource "google_pubsub_topic_iam_member" "subscribers" {
  for_each = local.subscribers
  project  = var.project
  topic    = var.dead_letter_topics[each.key]
  role     = "roles/pubsub.publisher"
  member   = each.value
}

resource "google_storage_bucket_iam_member" "files_create" {
  for_each = local.folders
  bucket   = var.bucket
  role     = "roles/storage.objectCreator"
  member   = local.subscribers[each.key]

  condition {
    title      = "own-folder"
    expression = "resource.name.startsWith(\"${local.objects}/${each.value}/\")"
  }
}

resource "google_storage_bucket_iam_member" "files_read" {
  for_each = local.folders
  bucket   = var.bucket
  role     = "roles/storage.objectViewer"
  member   = local.subscribers[each.key]

  condition {
    title      = "own-folder"
    expression = "resource.name == \"projects/_/buckets/${var.bucket}\" || resource.name.startsWith(\"${local.objects}/${each.value}/\")"
  }
}

# The adapter shows the autoscalers the backlog, which is in the subscription's project, and the servers' queues, in the cluster's.
resource "google_project_iam_member" "adapter" {
  for_each = length(var.streams) == 0 ? toset([]) : toset([var.project, var.cluster_project])
  project  = each.key
  role     = "roles/monitoring.viewer"
  member   = local.adapter
}

resource "google_project_iam_member" "adapter_writes" {
  count   = length(var.streams) == 0 ? 0 : 1
  project = var.cluster_project
  role    = "roles/monitoring.metricWriter"
  member  = local.adapter
}

resource "google_project_iam_member" "database" {
  for_each = toset(var.alloydb ? ["roles/alloydb.client", "roles/alloydb.databaseUser", "roles/serviceusage.serviceUsageConsumer"] : [])
  project  = var.cluster_project
  role     = each.key
  member   = var.streams_account.member
}

resource "google_service_account_iam_member" "database" {
  for_each           = local.databases
  service_account_id = var.streams_account.name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.workload_pool}[nightshift/${each.key}-subscriber]"
}
