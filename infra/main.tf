locals {
  cluster_project = coalesce(var.cluster_project_id, var.project_id)
  bucket          = coalesce(var.bucket, "${var.project_id}-${var.name}")
  labels          = merge({ app = "nightshift", deployment = var.name }, var.labels)
}

module "apis" {
  source          = "./modules/apis"
  project         = var.project_id
  cluster_project = local.cluster_project
  extra           = concat(var.kms_key == null ? [] : ["cloudkms.googleapis.com"], var.budget == null ? [] : ["billingbudgets.googleapis.com"])
}

module "network" {
  source  = "./modules/network"
  project = module.apis.cluster_project
  region  = var.region
  name    = var.name
  shared  = var.shared_network
  number  = module.apis.cluster_number
  nat     = var.nat
  # AlloyDB is reached through the range of private service access.
  service_access = var.alloydb
}

module "keys" {
  source         = "./modules/keys"
  key            = var.kms_key
  project        = module.apis.project
  number         = module.apis.number
  cluster_number = module.apis.cluster_number
}

module "storage" {
  source              = "./modules/storage"
  project             = module.apis.project
  region              = var.region
  bucket              = local.bucket
  datasets            = concat(var.source_datasets, var.target_datasets, ["nightshift"])
  lifecycle_days      = var.lifecycle_days
  kms_key             = module.keys.key
  deletion_protection = var.deletion_protection
}

module "registry" {
  source          = "./modules/registry"
  name            = var.name
  region          = var.region
  project         = module.apis.project
  cluster_project = module.apis.cluster_project
  docker_hub      = var.docker_hub
  kms_key         = module.keys.key
}

module "identities" {
  source             = "./modules/identities"
  project            = module.apis.project
  cluster_project    = module.apis.cluster_project
  cluster_number     = module.apis.cluster_number
  workload_pool      = module.cluster.workload_pool
  region             = var.region
  bucket             = module.storage.bucket
  source_datasets    = [for each in var.source_datasets : module.storage.datasets[each]]
  target_datasets    = [for each in concat(var.target_datasets, ["nightshift"]) : module.storage.datasets[each]]
  images             = module.registry.images
  packages           = module.registry.packages
  jobs               = var.jobs
  streams            = var.streams
  alloydb            = var.alloydb
  operators          = var.operators
  airflow_account    = module.accounts.airflow
  node_account       = module.accounts.nodes
  subscriptions      = module.pubsub.subscriptions
  streams_account    = module.accounts.streams
  dead_letter_topics = module.pubsub.dead_letter_topics
}

module "builds" {
  source          = "./modules/builds"
  name            = var.name
  region          = var.region
  project         = module.apis.project
  cluster_project = module.apis.cluster_project
  images          = module.registry.images["own"]
  wheels          = module.registry.packages["wheels"]
  operators       = var.operators
}

# Apart from their roles: the cluster runs as one of them, and the roles name the cluster's workload pool.
module "accounts" {
  source          = "./modules/accounts"
  name            = var.name
  project         = module.apis.project
  cluster_project = module.apis.cluster_project
}

module "cluster" {
  source              = "./modules/cluster"
  name                = var.name
  project             = module.apis.cluster_project
  region              = var.region
  autopilot           = var.autopilot
  zones               = var.default_zones
  node_account        = module.accounts.nodes.email
  network             = module.network.network
  subnetwork          = module.network.subnetwork
  pods_range          = module.network.pods_range
  services_range      = module.network.services_range
  default_nodes_max   = var.default_nodes_max
  node_pools          = var.node_pools
  reservations        = var.reservations
  maintenance         = var.maintenance
  kms_key             = module.keys.key
  labels              = local.labels
  deletion_protection = var.deletion_protection
}

module "pubsub" {
  source  = "./modules/pubsub"
  project = module.apis.project
  number  = module.apis.number
  region  = var.region
  streams = var.streams
  kms_key = module.keys.key
}

module "alloydb" {
  source              = "./modules/alloydb"
  count               = var.alloydb ? 1 : 0
  name                = var.name
  project             = module.apis.cluster_project
  region              = var.region
  network             = module.network.service_access
  cpus                = var.alloydb_cpus
  account             = module.accounts.streams.email
  kms_key             = module.keys.key
  deletion_protection = var.deletion_protection
}

module "composer" {
  source             = "./modules/composer"
  name               = var.name
  project            = module.apis.project
  region             = var.region
  account            = module.identities.airflow_ready
  bucket             = "${local.bucket}-airflow"
  package_index      = module.registry.index
  dags               = "${path.root}/../dags"
  network_attachment = var.composer_network_attachment
  kms_key            = module.keys.key
  force_destroy      = !var.deletion_protection
  settings = merge(module.cluster.reservations == "" ? {} : { NIGHTSHIFT_RESERVATIONS = module.cluster.reservations }, {
    NIGHTSHIFT_BUCKET           = module.storage.bucket
    NIGHTSHIFT_PROJECT          = var.project_id
    NIGHTSHIFT_LOCATION         = var.region
    NIGHTSHIFT_RUNTIME          = "gke:${module.cluster.id}"
    NIGHTSHIFT_SERVICE_ACCOUNT  = "nightshift-{job}"
    NIGHTSHIFT_PRIORITY_CLASS   = "nightshift-batch"
    NIGHTSHIFT_DRIVER_IMAGE     = module.registry.driver_image
    NIGHTSHIFT_STREAM_IMAGE     = module.registry.stream_image
    NIGHTSHIFT_SERVER_IMAGE     = module.registry.server_image
    NIGHTSHIFT_CPU_SERVER_IMAGE = module.registry.cpu_server_image
    NIGHTSHIFT_TPU_SERVER_IMAGE = module.registry.tpu_server_image
  })
}

module "budget" {
  source          = "./modules/budget"
  count           = var.budget == null ? 0 : 1
  name            = var.name
  billing_account = var.budget.billing_account
  amount          = var.budget.amount
  numbers         = toset([module.apis.number, module.apis.cluster_number])
}

module "monitoring" {
  source   = "./modules/monitoring"
  project  = module.apis.cluster_project
  folder   = "${path.root}/../monitoring/google"
  channels = var.notification_channels
}
